"""Which heads back each other up: what closing two heads adds to the loss beyond what each adds alone.

    I_ij = D_ij - D_i - D_j,   D_S = E_x[L(x; xi_S = 0) - L(x)], in nats a sentence

Above 0 each does some of the other's work while the other is closed: they back each other up. Below 0 they
share what they cost, as where one reads what the other writes. Every pair costs a pass over the text.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from torch import nn

from headgates.analysis.scores.exact_effects import loss_rises
from headgates.analysis.without_heads import closing
from headgates.gates import HeadMap
from headgates.gates.headmap import Head, head_name


def interactions(
    model: nn.Module, batches: Iterable[Any], heads: Sequence[Head], alone: HeadMap, **reading: Any
) -> list[dict[str, Any]]:
    """Return a row for every pair of the heads, the strongest interaction first. Columns: head, other (their
    names), head_alone, other_alone (D of each), both (D of the two), interaction.

    alone: D of each head on the same batches (`exact_effects`). Other arguments and errors are those of
    `loss_rises`."""
    pairs = list(combinations(heads, 2))
    rises = loss_rises(model, batches, [closing(pair) for pair in pairs], **reading)
    rows = []
    for pair, both in zip(pairs, rises.tolist(), strict=True):
        head, other = (float(alone[site][number]) for site, number in pair)
        row = dict(zip(("head", "other"), map(head_name, pair), strict=True))
        numbers = {"head_alone": head, "other_alone": other, "both": both}
        rows.append({**row, **numbers, "interaction": both - head - other})
    return sorted(rows, key=lambda row: -abs(row["interaction"]))

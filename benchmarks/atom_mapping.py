"""Do the tools of this library find the head that a real model is known for?

The package rxnmapper (Schwaller et al. 2021, Science Advances 7, eabe4166; MIT) holds an ALBERT that was
trained to fill in masked tokens of chemical reactions. Its authors found a head that looks from an atom of
the product to the atom of the reactants that it was. Their program reads that mapping off head 5 of layer 10.

    pip install --no-deps rxnmapper==0.4.3
    python -m benchmarks.atom_mapping

The reactions are put together here, so the true mapping is known. Every head is asked two questions. How
often does its largest weight lie on the right atom (analysis/syntax.py)? How much does the loss of masked
atoms of the product rise without it (exact_effects)?

ALBERT runs one layer twelve times, so a head is one set of weights that is closed in all runs at once.
`unshared` makes the same function with weights for each run, and so with heads for each run.
"""

import argparse
import importlib.util
import itertools
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.benchmark import Answer, count_flag, run
from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.scores.exact_effects import exact_effects
from headgates.analysis.syntax import Syntax

KNOWN = 10, 5  # the layer and the head that the package reads, from 0
RELATION = "atom"
MASKED = 0.3  # share of the product's atoms
# tokens of a reaction: a bracket atom, an element, a bond, a branch, a ring, the arrow
TOKEN = re.compile(r"\[[^]]+\]|Br|Cl|>>|[BCNOPSFIbcnops]|[()=#~.\-+/\\]|\d")
ATOM = re.compile(r"\[|[A-Za-z]")

# parts that end with the atom at which the bond is made, and parts that begin with it
LEFT = (
    "CC",
    "CCC",
    "CC(C)",
    "C1CCCCC1",
    "c1ccccc1",
    "Cc1ccc(cc1)",
    "COc1ccc(cc1)",
    "Clc1ccc(cc1)",
    "c1ccncc1",
)
RIGHT = ("CC", "CCC", "C(C)C", "C2CCCCC2", "Cc2ccccc2", "c2ccc(C)cc2", "c2ccc(F)cc2", "CCOC", "c2cccnc2")
# the first reactant, of which what is after | leaves, and the second
KINDS = (
    ("{}C(=O)|O", "N{}"),  # an amide
    ("{}C(=O)|O", "O{}"),  # an ester
    ("{}S(=O)(=O)|Cl", "N{}"),  # a sulfonamide
    ("{}C|Br", "O{}"),  # an ether
    ("{}C|Br", "S{}"),  # a thioether
)


@dataclass(frozen=True)
class Reaction:
    """words: its tokens. came_from: a token of the product -> the token of the reactants that the atom was.
    With heads and labels it has the form of a dependency tree, as `Syntax` reads it."""

    words: tuple[str, ...]
    came_from: Mapping[int, int]

    @property
    def heads(self) -> tuple[int, ...]:
        return tuple(self.came_from.get(token, -1) + 1 for token in range(len(self.words)))

    @property
    def labels(self) -> tuple[str, ...]:
        return (RELATION,) * len(self.words)


def reactions(count: int, seed: int = 1) -> list[Reaction]:
    """So many different ones, of which either reactant is written first."""
    made = [reaction(*parts) for parts in itertools.product(LEFT, RIGHT, KINDS, (False, True))]
    return random.Random(seed).sample(made, count)


def reaction(left: str, right: str, kind: tuple[str, str], turned: bool) -> Reaction:
    stays, leaves = (TOKEN.findall(part) for part in kind[0].format(left).split("|"))
    second = TOKEN.findall(kind[1].format(right))
    first_at, second_at = (len(second) + 1, 0) if turned else (0, len(stays) + len(leaves) + 1)
    before = [*second, ".", *stays, *leaves] if turned else [*stays, *leaves, ".", *second]
    words = (*before, ">>", *stays, *second)
    places = [*range(first_at, first_at + len(stays)), *range(second_at, second_at + len(second))]
    product = enumerate(places, len(before) + 1)
    return Reaction(words, {token: place for token, place in product if ATOM.match(words[place])})


# ---------------------------------------------------------------- the model


def folder() -> Path | None:
    """Where the package keeps its model; None where it is not installed. Importing it would need RDKit."""
    found = importlib.util.find_spec("rxnmapper")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "models/transformers/albert_heads_8_uspto_all_1310k"


def load(place: Path) -> Any:
    """The model as it is, with one layer for all runs."""
    return transformers.AlbertForMaskedLM.from_pretrained(place, attn_implementation="eager").eval()


def unshared(model: Any) -> Any:
    """The same function, with weights for each run of the layer."""
    config = model.config.to_dict() | {"num_hidden_groups": model.config.num_hidden_layers}
    copied = type(model)._from_config(type(model.config).from_dict(config), attn_implementation="eager")
    weights = model.state_dict()
    names = {name: re.sub(r"layer_groups\.\d+", "layer_groups.0", name) for name in copied.state_dict()}
    copied.load_state_dict({name: weights[shared] for name, shared in names.items()})
    return copied.eval()


def vocabulary(place: Path) -> dict[str, int]:
    words = (place / "vocab.txt").read_text("utf-8").split("\n")
    return {word: number for number, word in enumerate(words) if word}


def batches(
    made: Sequence[Reaction], ids: Mapping[str, int], *, masked: float = 0.0, size: int = 16, seed: int = 1
) -> Iterator[dict[str, Tensor]]:
    """Batches of a masked language model. This share of the product's atoms is masked, and they alone have
    labels."""
    luck = random.Random(seed)
    for start in range(0, len(made), size):
        some = made[start : start + size]
        rows = [[ids[word] for word in ("[CLS]", *each.words, "[SEP]")] for each in some]
        longest = max(map(len, rows))
        words = torch.tensor([row + [ids["[PAD]"]] * (longest - len(row)) for row in rows])
        batch = {"input_ids": words, "attention_mask": (words != ids["[PAD]"]).long()}
        if masked:
            atoms = [(row, 1 + token) for row, each in enumerate(some) for token in each.came_from]
            chosen = torch.tensor([place for place in atoms if luck.random() < masked]).unbind(1)
            batch["labels"] = torch.full_like(words, -100)
            batch["labels"][chosen] = words[chosen]
            words[chosen] = ids["[MASK]"]
        yield batch


# ---------------------------------------------------------------- the two questions


def right_atoms(model: Any, made: Sequence[Reaction], ids: Mapping[str, int]) -> Syntax:
    """How often each head looks along the relation from an atom of the product to what it was, and back."""
    pieces = {number: [None, *range(len(each.words))] for number, each in enumerate(made)}
    found = Syntax(dict(enumerate(made)), pieces, [RELATION])
    observe_attention(model, batches(made, ids), [found], special_ids=[ids["[CLS]"], ids["[SEP]"]])
    return found


def answer(options: argparse.Namespace) -> Answer:
    place = folder()
    if place is None:
        raise ValueError("the package rxnmapper is not installed: pip install --no-deps rxnmapper==0.4.3")
    model, ids, made = load(place), vocabulary(place), reactions(options.reactions)
    rows = []
    for runs, each in (("all", model), ("one", unshared(model))):
        right = right_atoms(each, made, ids)
        shares = right.accuracies()[f"{RELATION} dependent->head"]
        effects = exact_effects(each, [*batches(made, ids, masked=MASKED)])
        rows += [
            {
                "runs": runs if runs == "all" else site.layer,
                "heads": {"right": shares[site].tolist(), "effect": effects[site].tolist()},
                "offset": right.relations()[0].baseline,
            }
            for site in effects
        ]
    header = [
        "run",
        "head that is right most often",
        "share",
        "next",
        "head of the largest effect",
        "nats",
        "next",
    ]
    return Answer({"reactions": len(made), "rows": rows}, header, [line(row) for row in rows])


def line(row: Mapping[str, Any]) -> list[str]:
    """run, then by either question the first head, its value and that of the next."""
    cells = [str(row["runs"])]
    for values in row["heads"].values():
        head, best, after = first_two(values)
        cells += [str(head), f"{best:.3f}", f"{after:.3f}"]
    return cells


def first_two(values: Sequence[float]) -> tuple[int, float, float]:
    """The head of the largest value, that value and the next."""
    best, after = sorted(values, reverse=True)[:2]
    return values.index(best), best, after


def main() -> int:
    question = "which head finds the atom that an atom was, and which is missed most?"
    flags = [count_flag("--reactions", 32, "reactions, at most 810")]
    return run("atom_mapping", question, __doc__, flags, answer, ["transformers", "rxnmapper"])


if __name__ == "__main__":
    sys.exit(main())

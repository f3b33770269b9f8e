"""Whether an exported model says what the model says: log-probabilities of references, greedy and beam
translations.

Two runtimes add the same numbers in other orders, so log-probabilities agree to rounding, not to the bit, and
a search that stands between two hypotheses of equal score may take either. Anything beyond that is an error.
"""

import math
import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from headgates.models.beam import length_limits
from headgates.models.line_translator import LineTranslator, RankedTranslation
from headgates.models.translator import Translator

TOLERANCE = 1e-4  # nats: the largest difference of a token's log-probability
ROUNDING = 0.1  # nats: the largest mean difference where weights were rounded to int8
NEAR_TIE = 1e-3  # nats a token: two translations nearer than this in score are both right


class ParityError(ValueError):
    """An exported model does not say what the model says."""


def parity(
    translator: Translator,
    exported: LineTranslator,
    lines: Sequence[str],
    references: Sequence[str],
    *,
    rounded: bool = False,
) -> dict[str, Any]:
    """What was compared and how far apart the two were; differences are in nats, shares from 0 to 1.

    rounded: the weights are in fewer bits, so differences are reported, and an error only where
    log-probabilities differ by more than ROUNDING on average.

    A translation may differ where the model's own scores of the two lie within NEAR_TIE: those that rank
    hypotheses for beam search, those of the first token that differs for greedy search. Raises ValueError,
    naming the first failure, at anything else, and at no lines."""
    if not any(line.strip() for line in lines):
        raise ValueError("parity needs at least one line that is not empty")
    tolerance, near_tie = (math.inf, math.inf) if rounded else (TOLERANCE, NEAR_TIE)
    found: dict[str, Any] = {"sentences": len(lines)}
    found |= {} if rounded else {"tolerance": tolerance, "near_tie": near_tie}
    found |= log_probs(translator, exported, lines, references, tolerance)
    if found["log_prob_mean_difference"] > ROUNDING:
        raise ParityError(
            f"parity failed: log-probabilities differ by {found['log_prob_mean_difference']:.3f} on average, "
            f"which rounding does not explain (at most {ROUNDING:g} expected)"
        )
    for beam in sorted({1, translator.search.beam}):
        found["greedy" if beam == 1 else f"beam_{beam}"] = compare_translations(
            translator, exported, lines, beam, tolerance, near_tie
        )
    return found


def log_probs(
    translator: Translator,
    exported: LineTranslator,
    lines: Sequence[str],
    references: Sequence[str],
    tolerance: float,
) -> dict[str, Any]:
    """The differences of the log-probabilities of all pieces of the references, their ends counted."""
    ours, theirs = translator.score(lines, references), exported.score(lines, references)
    if [len(row) for row in ours] != [len(row) for row in theirs]:
        raise ParityError("parity failed: the exported model scores another number of tokens than the model")
    differences = []
    for line, row, other in zip(lines, ours, theirs, strict=True):
        for a, b in zip(row, other, strict=True):
            differences.append(abs(a - b))
            if not differences[-1] <= tolerance:  # a NaN too
                raise ParityError(
                    f"parity failed: in the reference of {line!r} a token has log-probability {b:.6f}, the "
                    f"model says {a:.6f} (at most {tolerance:g} apart expected)"
                )
    return {
        "pieces": len(differences),
        "log_prob_max_difference": max(differences),
        "log_prob_mean_difference": sum(differences) / len(differences),
    }


def compare_translations(
    translator: Translator,
    exported: LineTranslator,
    lines: Sequence[str],
    beam: int,
    tolerance: float,
    near_tie: float,
) -> dict[str, Any]:
    """Share of identical translations with this beam, how near a tie the others are, and how many times as
    fast as the model the exported one was."""
    # with a shortlist a line's candidates are those of its batch, and batches differ
    batches = [[line] for line in lines] if translator.shortlist else [lines]
    begin = time.perf_counter()
    ours = [best[0] for batch in batches for best in translator.translate_n_best(batch, beam=beam)]
    middle = time.perf_counter()
    theirs = [best[0] for batch in batches for best in exported.translate_n_best(batch, beam=beam)]
    speedup = (middle - begin) / max(time.perf_counter() - middle, 1e-9)
    if len(ours) != len(theirs):
        raise ParityError(f"parity failed: {len(lines)} lines gave {len(theirs)} translations")
    gaps = []
    lengths = list(map(len, translator.source_vocab.encode(list(lines))))
    specials = translator.target_vocab.specials
    limits = length_limits(lengths, specials, translator.search, translator.max_positions)
    for line, a, b, limit in zip(lines, ours, theirs, limits, strict=True):
        # CTranslate2 scores what is cut at the limit by all pieces, not by those of a shortlist
        same_scale = translator.shortlist is None or a.tokens < limit
        apart = abs(a.log_prob - b.log_prob) / max(a.tokens, 1)
        if a.text != b.text:
            gaps.append(score_gap(translator, line, a, b, greedy=beam == 1))
            if not gaps[-1] <= near_tie:
                raise ParityError(
                    f"parity failed: with beam {beam} {line!r} becomes {b.text!r}, the model says "
                    f"{a.text!r}; the model's scores of the two differ by {gaps[-1]:.6f} (at most "
                    f"{near_tie:g} expected)"
                )
        elif same_scale and a.tokens == b.tokens and not apart <= tolerance:  # a NaN too
            raise ParityError(
                f"parity failed: with beam {beam} {a.text!r} has log-probability {b.log_prob:.6f}, the "
                f"model says {a.log_prob:.6f}"
            )
    return {
        "identical": 1 - len(gaps) / len(lines),
        "differing": len(gaps),
        "largest_score_gap": max(gaps, default=0.0),
        "speedup": speedup,
    }


def score_gap(
    translator: Translator, line: str, ours: RankedTranslation, theirs: RankedTranslation, *, greedy: bool
) -> float:
    """How far apart the model's own scores of two translations of a line are, in nats a token."""
    a, b = translator.score([line] * 2, [ours.text, theirs.text])
    if not greedy:
        penalty = translator.search.length_penalty
        return abs(sum(a) / len(a) ** penalty - sum(b) / len(b) ** penalty)
    vocab = translator.target_vocab
    ids, forced = vocab.encode([ours.text, theirs.text]), len(vocab.specials.forced)
    first = next((i for i, pair in enumerate(zip_longest(*ids)) if pair[0] != pair[1]), None)
    # texts of the same pieces differ in spaces alone; scores begin after the forced pieces
    return 0.0 if first is None else abs(a[first - forced] - b[first - forced])

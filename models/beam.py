"""Greedy and beam search over the steps of a model, whatever runs it. Importing this needs no torch.

A hypothesis of n tokens (end of sentence counted) scores log p / n ** length_penalty. A sentence is finished
when `beam` of its hypotheses have ended, or at its length limit, where the end is forced; finished sentences
leave the batch. Letters: B sentences still open, k beam, N = B * k rows, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headgates.configs.settings import SearchConfig
from headgates.data.special_tokens import SpecialTokens

NOT_FINITE = "the model gives no finite probability to any next token; its weights hold NaN, so take another"


@dataclass(frozen=True)
class Hypothesis:
    """A translation: pieces without the end, log probability in nats (end included) and the score it was
    ranked by."""

    ids: list[int]
    log_prob: float
    score: float


class Steps(Protocol):
    """A model that decodes k rows of each sentence, a token at a time."""

    @property
    def length(self) -> int:
        """How many tokens it has decoded."""

    @property
    def k(self) -> int:
        """Rows of a sentence."""

    @property
    def vocab(self) -> int:
        """V."""

    def best(
        self, ids: np.ndarray, scores: np.ndarray, at_limit: np.ndarray, most: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Decode the tokens ids (N,). Of the log probabilities of the next tokens, each added to its row's
        score (B, k), return the `most` largest of every sentence, (B, most), largest first, and their places
        among its k * V. Nothing but the end follows in sentences at_limit (B,)."""

    def select(self, rows: np.ndarray, sentences: np.ndarray | None) -> None:
        """Row n becomes what row rows[n] was; with `sentences` (indices into the remaining ones) the others
        are dropped."""


def length_limits(
    lengths: Sequence[int], specials: SpecialTokens, search: SearchConfig, most: int | None
) -> np.ndarray:
    """Return the longest target (B,) of sources of so many pieces, end included: max_ratio * pieces +
    max_extra, and no more than `most`. Forced first pieces and min_length pieces always have room."""
    least = max(len(specials.forced), search.min_length) + 1
    limits = (np.array(lengths, np.float32) * np.float32(search.max_ratio)).astype(np.int64)
    return np.clip(limits + search.max_extra, least, most)


def search_steps(
    steps: Steps, limits: np.ndarray, specials: SpecialTokens, length_penalty: float
) -> list[list[Hypothesis]]:
    """Return for every source, whose limits are (B,), its k best hypotheses, best first. Raises ValueError
    where no token has a finite probability."""
    if steps.k == 1:
        return [[one] for one in greedy(steps, limits, specials, length_penalty)]
    return beam(steps, limits, specials, length_penalty)


def greedy(
    steps: Steps, limits: np.ndarray, specials: SpecialTokens, length_penalty: float
) -> list[Hypothesis]:
    """The hypothesis of every source that takes the most probable token at every step."""
    sentences = np.arange(len(limits))
    ids = np.full(len(limits), specials.beginning)
    out: list[list[int]] = [[] for _ in limits]
    log_prob = np.zeros(len(limits), np.float32)
    while len(sentences):
        at_limit = limits[sentences] <= steps.length + 1
        none = np.zeros((len(sentences), 1), np.float32)
        best, ids = (each[:, 0] for each in steps.best(ids, none, at_limit, 1))
        log_prob[sentences] += best
        for sentence, token in zip(sentences.tolist(), ids.tolist(), strict=True):
            out[sentence].append(token)
        going = np.flatnonzero(ids != specials.end)
        if len(going) < len(ids):
            steps.select(going, going)
            ids, sentences = ids[going], sentences[going]
    if not np.isfinite(log_prob).all():
        raise ValueError(NOT_FINITE)
    return [
        Hypothesis(row[:-1], total, total / len(row) ** length_penalty)
        for row, total in zip(out, log_prob.tolist(), strict=True)
    ]


def beam(
    steps: Steps, limits: np.ndarray, specials: SpecialTokens, length_penalty: float
) -> list[list[Hypothesis]]:
    k = steps.k
    finished: list[list[Hypothesis]] = [[] for _ in limits]
    sentences = np.arange(len(limits))
    ids = np.full(len(limits) * k, specials.beginning)
    # the k rows of a sentence start equal: all but the first are ruled out, or each hypothesis would come k
    # times
    scores = np.full((len(limits), k), -np.inf, np.float32)
    scores[:, 0] = 0.0
    history = np.empty((len(limits), k, 0), np.int64)  # tokens so far
    while len(sentences):
        n = steps.length + 1
        at_limit = limits[sentences] <= n
        # of 2k candidates at least k do not end, because each row has one end
        best, flat = steps.best(ids, scores, at_limit, 2 * k)  # (B, 2k)
        origin, token = np.divmod(flat, steps.vocab)
        ends = token == specials.end
        # an end counts only among the k best, as if it had taken its row's place
        for b, c in np.argwhere(ends[:, :k] & np.isfinite(best[:, :k])).tolist():
            log_prob = float(best[b, c])
            ended = Hypothesis(history[b, origin[b, c]].tolist(), log_prob, log_prob / n**length_penalty)
            finished[sentences[b]].append(ended)
        counts = np.array([len(finished[sentence]) for sentence in sentences])
        going = np.flatnonzero((counts < k) & ~at_limit)
        going_on = np.argsort(ends, axis=1, kind="stable")[:, :k]  # the k best that do not end, in order
        rows, token, scores = (np.take_along_axis(each, going_on, 1) for each in (origin, token, best))
        own = np.arange(len(sentences))[:, None]
        history = np.concatenate([history[own, rows], token[:, :, None]], axis=2)
        rows = rows + own * k
        if len(going) < len(sentences):
            scores, history, token, rows = scores[going], history[going], token[going], rows[going]
            sentences = sentences[going]
            steps.select(rows.ravel(), going)
        else:
            steps.select(rows.ravel(), None)
        ids = token.ravel()
    if not all(finished):
        raise ValueError(NOT_FINITE)
    # the last step may have brought more than k ends
    return [sorted(done, key=lambda hypothesis: -hypothesis.score)[:k] for done in finished]

"""Greedy and beam search (beam.py) of a model in torch. Keys and values are kept from step to step; before
`min_length` pieces a hypothesis cannot end. Letters: B sentences still open, k beam, N = B * k rows, V
vocabulary.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.configs.settings import SearchConfig
from headgates.data.special_tokens import SpecialTokens
from headgates.models.beam import Hypothesis, length_limits, search_steps
from headgates.models.cpu_kernels import top
from headgates.models.description import most_tokens
from headgates.models.transformer import Transformer


def source_limits(model: Transformer, source: Tensor, search: SearchConfig) -> np.ndarray:
    """The `beam.length_limits` (B,) of sources (B, S), within learned positions."""
    lengths = ((source != model.source_specials.padding).sum(1) - 1).tolist()
    return length_limits(lengths, model.target_specials, search, most_tokens(model.config))


@torch.inference_mode()
def best_hypotheses(
    model: Transformer, source: Tensor, search: SearchConfig, candidates: np.ndarray | None = None
) -> list[list[Hypothesis]]:
    """Return for every source (B, S) its `search.beam` best hypotheses, best first; with a beam of 1 the one
    that takes the most probable token at every step.

    candidates: the target ids (C,), ascending and special tokens among them, that the output layer computes
    (`Shortlist.candidates`); all unless given. Probabilities are of those of them that may be produced."""
    known = model.target_vocab if candidates is None else len(candidates)
    steps = ModelSteps(model, source, min(search.beam, known - 1), search.min_length, candidates)
    limits = source_limits(model, source, search)
    return search_steps(steps, limits, model.target_specials, search.length_penalty)


class ModelSteps:
    """The `Steps` of a model in torch, on its own device."""

    def __init__(
        self,
        model: Transformer,
        source: Tensor,
        k: int,
        min_length: int,
        candidates: np.ndarray | None = None,
    ):
        self.model, self.device, self.min_length = model, source.device, min_length
        self.state = model.start(source, k)
        self.k, self.vocab = k, model.target_vocab
        self.candidates = candidates
        self.output = None if candidates is None else OutputRows(model.output, self.here(candidates))
        specials = model.target_specials
        self.specials = specials if candidates is None else specials.renumbered(candidates.tolist())

    @property
    def length(self) -> int:
        return self.state.length

    def best(
        self, ids: np.ndarray, scores: np.ndarray, at_limit: np.ndarray, most: int
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = self.here(at_limit.repeat(scores.shape[1]))
        logits = self.model.step(self.here(ids), self.state, self.output)
        if self.candidates is not None:
            rule_out(logits, self.specials)  # padding is likely among few, and CTranslate2 leaves it out too
        log_p = next_log_probs(logits, self.state.length - 1, self.specials, rows, self.min_length)
        sums = log_p.view(*scores.shape, -1).add_(self.here(scores)[:, :, None]).flatten(1)
        values, places = (each.cpu().numpy() for each in top(sums, most))
        if self.candidates is not None:
            row, place = np.divmod(places, len(self.candidates))
            places = row * self.vocab + self.candidates[place]
        return values, places

    def select(self, rows: np.ndarray, sentences: np.ndarray | None) -> None:
        self.state.select(self.here(rows), None if sentences is None else self.here(sentences))

    def here(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)


class OutputRows(nn.Module):
    """Some rows (C,) of an output layer."""

    def __init__(self, output: nn.Linear, rows: Tensor):
        super().__init__()
        self.weight = output.weight[rows]  # (C, D)
        self.bias = None if output.bias is None else output.bias[rows]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def next_log_probs(
    logits: Tensor, position: int, specials: SpecialTokens, at_limit: Tensor, min_length: int
) -> Tensor:
    """Return the log probabilities (N, V) of the token at a position from its logits (N, V), in nats and
    fp32; those of padding and beginning are -inf, of rows at_limit (N,) all but the end's, and of other rows
    the end's before min_length pieces. Those of fp32 are overwritten.

    Where a token is forced it has 0, and all others have -inf."""
    logits, forced = logits.float(), specials.forced
    log_p = torch.log_softmax(logits, -1, out=logits)  # in place: (N, V) is the largest tensor of a step
    if position < len(forced):
        log_p = torch.full_like(log_p, -torch.inf)
        log_p[:, forced[position]] = 0.0
        return log_p
    if at_limit.any():
        end = log_p[at_limit, specials.end]
        log_p[at_limit] = -torch.inf
        log_p[at_limit, specials.end] = end
    return rule_out(log_p, specials, ~at_limit if position < min_length else None)


def rule_out(scores: Tensor, specials: SpecialTokens, early: Tensor | None = None) -> Tensor:
    """Set the scores (..., V) of the tokens that are never produced, and of the end where it is too early
    (...), to -inf, in place, and return them."""
    for token in specials.never_produced:
        scores[..., token] = -torch.inf
    if early is not None:
        scores[..., specials.end].masked_fill_(early, -torch.inf)
    return scores

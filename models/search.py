"""Greedy and beam search. Keys and values are kept from step to step, and finished sentences leave the batch.

A hypothesis of n tokens (end of sentence counted) scores log p / n ** length_penalty. A sentence is finished
when `beam` of its hypotheses have ended, or at its length limit, where the end is forced. Letters: B
sentences still open, k beam, N = B * k rows, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headgates.data.special_tokens import SpecialTokens
from headgates.models.cpu_kernels import top
from headgates.models.decoder_state import DecoderState
from headgates.models.transformer import Transformer


@dataclass(frozen=True)
class Hypothesis:
    """A translation: pieces without the end, log probability in nats (end included) and the score it was
    ranked by."""

    ids: list[int]
    log_prob: float
    score: float


def length_limits(model: Transformer, source: Tensor, max_ratio: float, max_extra: int) -> Tensor:
    """Return the longest target (B,) of each source, end included: max_ratio * its pieces + max_extra, within
    learned positions.

    Forced first pieces always have room."""
    pieces = (source != model.source_specials.padding).sum(1) - 1
    limits = ((pieces * max_ratio).long() + max_extra).clamp(min=len(model.target_specials.forced) + 1)
    return limits.clamp(max=model.config.max_positions) if model.config.positions == "learned" else limits


@torch.inference_mode()
def greedy_search(
    model: Transformer,
    source: Tensor,
    *,
    length_penalty: float = 1.0,
    max_ratio: float = 2.0,
    max_extra: int = 10,
) -> list[Hypothesis]:
    """Return for every source (B, S) the hypothesis that takes the most probable token at every step."""
    specials = model.target_specials
    limits = length_limits(model, source, max_ratio, max_extra)
    state = model.start(source)
    ids = torch.full((len(source),), specials.beginning, device=source.device)
    out = torch.full((len(source), int(limits.max())), specials.padding, device=source.device)
    log_prob = torch.zeros(len(source), device=source.device)
    while len(ids):
        log_p = next_log_probs(model, ids, state)
        at_limit = limits[state.sentences] <= state.length
        best, ids = (each.squeeze(1) for each in top(log_p, 1))
        best = torch.where(at_limit, log_p[:, specials.end], best)
        ids = ids.masked_fill(at_limit, specials.end)
        log_prob[state.sentences] += best
        out[state.sentences, state.length - 1] = ids
        going = (ids != specials.end).nonzero().flatten()
        if len(going) < len(ids):
            state.select(going, going)
            ids = ids[going]
    results = []
    for row, total in zip(out.tolist(), log_prob.tolist(), strict=True):
        n = row.index(specials.end)
        results.append(Hypothesis(row[:n], total, total / (n + 1) ** length_penalty))
    return results


@torch.inference_mode()
def beam_search(
    model: Transformer,
    source: Tensor,
    *,
    beam: int,
    length_penalty: float = 1.0,
    max_ratio: float = 2.0,
    max_extra: int = 10,
) -> list[list[Hypothesis]]:
    """Return for every source (B, S) its `beam` best hypotheses, best first. Raises ValueError at a beam
    below 1."""
    if beam < 1:
        raise ValueError(f"expected a beam of at least 1, got {beam}")
    k = min(beam, model.target_vocab - 1)
    device, specials = source.device, model.target_specials
    limits = length_limits(model, source, max_ratio, max_extra)
    state = model.start(source, k)
    finished: list[list[Hypothesis]] = [[] for _ in source]
    ids = torch.full((len(source) * k,), specials.beginning, device=device)
    # the k rows of a sentence start equal: all but the first are ruled out, or each hypothesis would come k
    # times
    scores = torch.full((len(source), k), -torch.inf, device=device)
    scores[:, 0] = 0.0
    history = torch.empty((len(source), k, 0), dtype=torch.long, device=device)  # tokens so far
    while len(state.sentences):
        open_count = len(state.sentences)
        log_p = next_log_probs(model, ids, state)
        n = state.length
        at_limit = limits[state.sentences] <= n
        if at_limit.any():
            forced = at_limit.repeat_interleave(k)
            end = log_p[forced, specials.end]
            log_p[forced] = -torch.inf
            log_p[forced, specials.end] = end
        # of 2k candidates at least k do not end, because each row has one end
        best, flat = top(log_p.view(open_count, k, -1).add_(scores[:, :, None]).flatten(1), 2 * k)  # (B, 2k)
        origin, token = flat // log_p.shape[1], flat % log_p.shape[1]
        ends = token == specials.end
        # an end counts only among the k best, as if it had taken its row's place
        for b, c in (ends[:, :k] & best[:, :k].isfinite()).nonzero().tolist():
            log_prob = float(best[b, c])
            ended = Hypothesis(history[b, int(origin[b, c])].tolist(), log_prob, log_prob / n**length_penalty)
            finished[int(state.sentences[b])].append(ended)
        counts = torch.tensor([len(finished[s]) for s in state.sentences.tolist()], device=device)
        going = ((counts < k) & ~at_limit).nonzero().flatten()
        going_on = torch.argsort(ends.to(torch.uint8), dim=1, stable=True)[
            :, :k
        ]  # the k best that do not end, in order
        rows, token = origin.gather(1, going_on), token.gather(1, going_on)  # (B, k)
        scores = best.gather(1, going_on)
        history = torch.cat(
            [history.gather(1, rows[:, :, None].expand(-1, -1, n - 1)), token[:, :, None]], dim=2
        )
        rows = rows + torch.arange(open_count, device=device)[:, None] * k
        if len(going) < open_count:
            scores, history, token, rows = scores[going], history[going], token[going], rows[going]
            state.select(rows.flatten(), going)
        else:
            state.select(rows.flatten())
        ids = token.flatten()
    if not all(finished):
        raise ValueError(
            "the model gives no finite probability to any next token; its weights hold NaN, so load "
            "another checkpoint"
        )
    # the last step may have brought more than k ends
    return [sorted(done, key=lambda hypothesis: -hypothesis.score)[:k] for done in finished]


def next_log_probs(model: Transformer, ids: Tensor, state: DecoderState) -> Tensor:
    """Return the log probabilities (N, V) of the next token, in nats and fp32; those of padding and beginning
    are -inf.

    Where a token is forced it has 0, and all others have -inf."""
    position, forced = state.length, model.target_specials.forced
    logits = model.step(ids, state).float()
    log_p = torch.log_softmax(logits, -1, out=logits)  # in place: (N, V) is the largest tensor of a step
    if position < len(forced):
        log_p = torch.full_like(log_p, -torch.inf)
        log_p[:, forced[position]] = 0.0
        return log_p
    return rule_out(log_p, model.target_specials)


def rule_out(scores: Tensor, specials: SpecialTokens) -> Tensor:
    """Set the scores (..., V) of the tokens that are never produced to -inf, in place, and return them."""
    for token in specials.never_produced:
        scores[..., token] = -torch.inf
    return scores

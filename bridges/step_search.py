"""Search over the two programs of an exported model, which steps.py describes, whatever runs them. Importing
this needs no torch. Letters: B sentences, k beam, N = B * k rows, S source, L, T positions, H heads, K head
width, V vocabulary."""

from collections.abc import Callable, Sequence

import numpy as np

from headgates.configs.settings import SearchConfig
from headgates.data.padding import padded
from headgates.data.vocab import Vocabulary
from headgates.models.beam import Hypothesis, length_limits, search_steps
from headgates.models.description import Description, most_tokens
from headgates.models.line_translator import LineTranslator

Arrays = list[np.ndarray]
Encode = Callable[[np.ndarray], Arrays]  # source -> bias, cross keys and values, layer by layer
# ids, length, bias, cross keys and values, past keys and values -> logits, grown past
Decode = Callable[[np.ndarray, int, np.ndarray, Arrays, Arrays], Arrays]


class StepTranslator(LineTranslator):
    """The translator of two programs. vocabs: of the source and of the target; past_sizes: heads and width of
    each past tensor."""

    def __init__(
        self,
        vocabs: tuple[Vocabulary, Vocabulary],
        model: Description,
        past_sizes: Sequence[tuple[int, int]],
        encode: Encode,
        decode: Decode,
    ):
        self.source_vocab, self.target_vocab = vocabs
        self.model, self.max_positions = model, most_tokens(model.config)
        self.past_sizes, self.encode, self.decode = past_sizes, encode, decode

    def search_batch(self, sources: list[list[int]], search: SearchConfig) -> list[list[Hypothesis]]:
        model, specials = self.model, self.model.target_specials
        limits = length_limits(list(map(len, sources)), specials, search, self.max_positions)
        known = self.candidates(sources)
        k = min(search.beam, (model.target_vocab if known is None else len(known)) - 1)
        source = padded(sources, model.source_specials, end=True)
        steps = ProgramSteps(self, source, k, search.min_length, known)
        return search_steps(steps, limits, specials, search.length_penalty)

    def score_batch(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        specials = self.model.target_specials
        bias, *cross = self.encode(padded(sources, self.model.source_specials, end=True))
        target = padded(targets, specials, begin=True, end=True)
        past = self.empty_past(len(sources), 1)
        logits = self.decode(target[:, None, :-1], 0, bias, cross, past)[0][:, 0]  # (B, T, V)
        out = target[:, 1:]
        found = np.take_along_axis(log_softmax(logits), out[:, :, None], 2)[:, :, 0]
        return np.where(out == specials.padding, 0.0, found).tolist()

    def empty_past(self, sentences: int, k: int) -> Arrays:
        """The keys and values (B, k, H, 0, K) before the first position."""
        return [np.empty((sentences, k, heads, 0, width), np.float32) for heads, width in self.past_sizes]


class ProgramSteps:
    """The `Steps` of the programs: keys and values of the source, and of the target so far."""

    def __init__(
        self,
        translator: StepTranslator,
        source: np.ndarray,
        k: int,
        min_length: int,
        candidates: np.ndarray | None,
    ):
        self.translator, self.vocab = translator, translator.model.target_vocab
        self.candidates = candidates  # the ids that may follow; the others were computed for nothing
        specials = translator.model.target_specials
        self.specials = specials if candidates is None else specials.renumbered(candidates.tolist())
        self.length, self.k, self.min_length = 0, k, min_length
        self.bias, *self.cross = translator.encode(source)
        self.past = translator.empty_past(len(source), k)  # (B, k, H, T, K)

    def best(
        self, ids: np.ndarray, scores: np.ndarray, at_limit: np.ndarray, most: int
    ) -> tuple[np.ndarray, np.ndarray]:
        specials, position = self.specials, self.length
        logits, *self.past = self.translator.decode(
            ids.reshape(*scores.shape, 1), position, self.bias, self.cross, self.past
        )
        self.length += 1
        logits = logits[:, :, 0]  # (B, k, V)
        if self.candidates is not None:
            logits = logits[:, :, self.candidates]
            logits[:, :, list(specials.never_produced)] = -np.inf  # as in `ModelSteps`
        log_p = log_softmax(logits)
        if position < len(specials.forced):
            rule_out_others(log_p, specials.forced[position])
            log_p[:, :, specials.forced[position]] = 0.0
        else:
            log_p[:, :, list(specials.never_produced)] = -np.inf
            if position < self.min_length:
                log_p[~at_limit, :, specials.end] = -np.inf
            log_p[at_limit] = rule_out_others(log_p[at_limit], specials.end)
        values, places = largest((log_p + scores[:, :, None]).reshape(len(scores), -1), most)
        if self.candidates is not None:
            row, place = np.divmod(places, len(self.candidates))
            places = row * self.vocab + self.candidates[place]
        return values, places

    def select(self, rows: np.ndarray, sentences: np.ndarray | None) -> None:
        if sentences is not None:
            self.bias, self.cross = self.bias[sentences], [each[sentences] for each in self.cross]
        for i, past in enumerate(self.past):
            flat = past.reshape(past.shape[0] * self.k, *past.shape[2:])
            self.past[i] = flat[rows].reshape(len(rows) // self.k, self.k, *past.shape[2:])


def rule_out_others(log_p: np.ndarray, token: int) -> np.ndarray:
    """Set all but one token's to -inf, in place, and return them."""
    kept = log_p[..., token].copy()
    log_p[...] = -np.inf
    log_p[..., token] = kept
    return log_p


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def largest(x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest numbers of each row of x (B, n), largest first, and their positions; of equal ones the
    first where one is asked for."""
    if most == 1:
        places = x.argmax(1)[:, None]
    else:
        places = np.argpartition(x, -most, axis=1)[:, -most:]
        order = np.argsort(-np.take_along_axis(x, places, 1), axis=1, kind="stable")
        places = np.take_along_axis(places, order, 1)
    return np.take_along_axis(x, places, 1), places

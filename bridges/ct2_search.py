"""CTranslate2 runs what ct2.py has written. Importing this needs no torch.

Its beam search is ours where it counts: 2k candidates a step, an end counts among the k best, a sentence is
finished when k hypotheses have ended, and log p / n ** length_penalty ranks them, the end counted in n. Six
things differ, and how they are met:
- all ends of a sentence's last step are kept and the k best of them returned, where ours stops at k: a better
  n-best list, the same best;
- padding and beginning can be produced: a sentence that has one among its hypotheses is searched again
  without them, and beside a shortlist they are ruled out at once;
- one length limit a batch: it is the longest, and a sentence that goes beyond its own is searched again, up
  to the last piece before its end is forced;
- forced first pieces count in no length: hypotheses are ranked here, with them;
- before the least length the end is left out of the softmax, and not only of the choice: log-probabilities
  are computed anew;
- sinusoids end, at 1,024 positions or `max_positions` if that is more: a longer source is refused, and no
  translation gets longer.
So a beam may take another way than ours in four places: where padding was in it and left no hypothesis;
without padding, as the softmax is over the other pieces then; before a least length above 1, for the same
reason; at the limit, as the rows are not known that would have replaced hypotheses which end one piece before
it. A trained model is hardly ever there. Greedy search has no such places, and the probabilities that are
returned are always ours. Letters: D model width, H heads, K head width.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import ctranslate2

from headgates.bridges.exported import sized_vocabs
from headgates.configs.settings import SearchConfig
from headgates.data.text import reworded
from headgates.data.vocab import Vocabulary
from headgates.models.beam import NOT_FINITE, Hypothesis, length_limits
from headgates.models.description import Description, table_length
from headgates.models.freed_memory import keep_freed_memory
from headgates.models.line_translator import LineTranslator

LOWEST = -1e30  # CTranslate2 rules hypotheses out with the lowest float; below this a score is none
BROKEN = "CTranslate2 cannot run the model", "export the run again"
CANDIDATES_FILE = "vmap.txt"  # what a shortlist is to CTranslate2
NO_PENALTY = 1e-9  # at 0 exactly it stops by another rule; n ** 1e-9 is 1 in fp32


def piece_names(vocab: Vocabulary) -> list[str]:
    """Return the piece of every id. Raises ValueError if two are alike, because CTranslate2 knows tokens by
    their names."""
    pieces = vocab.pieces(range(len(vocab)))
    if len(set(pieces)) < len(pieces):
        twice = next(piece for i, piece in enumerate(pieces) if piece in pieces[:i])
        raise ValueError(f"the vocabulary has the piece {twice!r} twice; CTranslate2 cannot tell them apart")
    return pieces


class CTranslate2Model(LineTranslator):
    """The model of a folder that holds what `write` wrote, its vocabularies and export.json; it has the same
    methods as `Translator`.

    compute_type: float32, or int8, which quantises embeddings and weight matrices of any size as they are
    loaded, each row with a scale of its own; biases, norms and positions stay fp32. On the toy and Tatoeba
    models log-probabilities of tokens moved by 0.002 and 0.011 nats on average, 0.2 at most. Raises
    ValueError at a folder or compute type that cannot be opened."""

    def __init__(self, folder: Path, shape: Description, threads: int, *, compute_type: str = "float32"):
        supported = sorted(ctranslate2.get_supported_compute_types("cpu"))
        if compute_type not in supported:
            raise ValueError(
                f"CTranslate2 has no {compute_type} on this CPU; expected one of {', '.join(supported)}"
            )
        keep_freed_memory()
        self.max_positions = table_length(shape.config)
        self.specials = shape.target_specials
        self.source_vocab, self.target_vocab = sized_vocabs(folder, shape)
        self.source_names, self.target_names = piece_names(self.source_vocab), piece_names(self.target_vocab)
        self.has_candidates = (folder / CANDIDATES_FILE).is_file()
        self.target_ids = {name: i for i, name in enumerate(self.target_names)}
        source_end = self.source_names[shape.source_specials.end]  # CTranslate2 adds the target's
        self.source_suffix = [] if source_end == self.target_names[self.specials.end] else [source_end]
        with reworded(f"CTranslate2 cannot open {folder}", "export the run again"):
            self.translator = ctranslate2.Translator(
                str(folder),
                device="cpu",
                compute_type=compute_type,
                intra_threads=threads,
            )

    def search_batch(self, sources: list[list[int]], search: SearchConfig) -> list[list[Hypothesis]]:
        search = replace(search, beam=min(search.beam, len(self.target_names) - 1))
        limits = length_limits(list(map(len, sources)), self.specials, search, self.max_positions).tolist()
        # among few candidates these are often in the beam, and half of the sentences were searched again
        found = self.run(self.source_pieces(sources), search, max(limits), suppress=self.has_candidates)
        results = []
        for ids, n_best, limit in zip(sources, found, limits, strict=True):
            too_long = any(not ended or len(one.ids) >= limit for one, ended in n_best)
            if too_long or self.ruled_out(n_best):
                results.append(self.search_again(ids, search, limit, too_long))
            elif search.min_length:  # CTranslate2's scores leave the end out before that
                results.append(self.ranked(ids, [one.ids for one, _ in n_best], search))
            else:
                results.append([one for one, _ in n_best])
        return results

    def search_to(self, sources: list[list[int]], beam: int, tokens: int) -> None:
        search = replace(self.search, beam=beam, min_length=tokens)
        self.run(self.source_pieces(sources), search, tokens, suppress=self.has_candidates)

    def run(
        self,
        sources: list[list[str]],
        search: SearchConfig,
        limit: int,
        *,
        patience: int = 1,
        suppress: bool = False,
    ) -> list[list[tuple[Hypothesis, bool]]]:
        """Return CTranslate2's best beam * patience hypotheses of every source, best first, and whether each
        has ended within `limit` tokens.

        The score of a hypothesis that has not ended is without its end. Raises ValueError if no hypothesis
        has a score."""
        forced = [self.target_names[i] for i in self.specials.forced]
        penalty = NO_PENALTY if forced else search.length_penalty or NO_PENALTY
        never = [[self.target_names[i]] for i in self.specials.never_produced]
        with reworded(*BROKEN, RuntimeError):
            found = self.translator.translate_batch(
                sources,
                target_prefix=[forced] * len(sources) if forced else None,
                beam_size=search.beam,
                num_hypotheses=search.beam * patience,
                patience=patience,
                length_penalty=penalty,
                max_input_length=0,
                max_decoding_length=limit,  # the prefix counted
                min_decoding_length=min(search.min_length, limit),
                return_end_token=True,
                return_scores=True,
                suppress_sequences=never if suppress else None,
                use_vmap=self.has_candidates,
            )
        results = []
        for result in found:
            hypotheses = []
            for tokens, score in zip(result.hypotheses, result.scores, strict=True):
                if score > LOWEST:
                    ids = [self.target_ids[token] for token in tokens]
                    ended = ids[-1] == self.specials.end
                    log_prob = score if forced else score * len(ids) ** search.length_penalty
                    ranking = log_prob / len(ids) ** search.length_penalty
                    hypotheses.append((Hypothesis(ids[: len(ids) - ended], log_prob, ranking), ended))
            if not hypotheses:
                raise ValueError(NOT_FINITE)
            results.append(sorted(hypotheses, key=lambda hypothesis: -hypothesis[0].score))
        return results

    def source_pieces(self, ids: Sequence[Sequence[int]]) -> list[list[str]]:
        """The pieces of each source, with its end where CTranslate2 would add another; an empty source stays
        empty."""
        return [[*(self.source_names[i] for i in row), *self.source_suffix] if row else [] for row in ids]

    def search_again(self, ids: list[int], search: SearchConfig, limit: int, cut: bool) -> list[Hypothesis]:
        """Return the best hypotheses of a source without padding and beginning; those that have not ended
        before `limit` end there.

        cut: whether the source is known to reach the limit; then all hypotheses that have ended before it are
        compared."""
        candidates = [list(self.specials.forced)]
        if limit - 1 > len(self.specials.forced):
            # fewer than the beam have ended when the limit is reached, so these are all
            patience = 2 if cut and search.beam > 1 else 1
            run = partial(self.run, self.source_pieces([ids]), search, limit - 1, patience=patience)
            (best,) = run(suppress=not cut)
            if self.ruled_out(best):
                (best,) = run(suppress=True)
            candidates = [one.ids for one, _ in best]
        return self.ranked(ids, candidates, search)[: search.beam]

    def ranked(self, ids: list[int], candidates: list[list[int]], search: SearchConfig) -> list[Hypothesis]:
        """The candidates of a source with the model's own log-probabilities, ends included, best first."""
        totals = map(sum, self.log_probs([ids] * len(candidates), candidates))
        ended = [
            Hypothesis(own, total, total / (len(own) + 1) ** search.length_penalty)
            for own, total in zip(candidates, totals, strict=True)
        ]
        return sorted(ended, key=lambda one: -one.score)

    def score_batch(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        pieces = [[self.target_names[i] for i in ids] for ids in targets]
        with reworded(*BROKEN, RuntimeError):
            found = self.translator.score_batch(self.source_pieces(sources), pieces, max_input_length=0)
        return [list(scored.log_probs) for scored in found]

    def ruled_out(self, n_best: Sequence[tuple[Hypothesis, bool]]) -> bool:
        """Whether a hypothesis holds padding or beginning, which CTranslate2 does not rule out unless asked
        to."""
        return any(set(self.specials.never_produced) & set(one.ids) for one, _ in n_best)


open = CTranslate2Model

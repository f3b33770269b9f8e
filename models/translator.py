"""One face for every model: translate lines, score pairs. records/source.py opens the model of a run:

source = open_source("runs/toy-en-de-l0-0.01-s1")
source.translator.translate(["The dog sleeps."])
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from headgates.configs.settings import SearchConfig
from headgates.data.batch import pad
from headgates.data.shortlist import Shortlist
from headgates.data.vocab import Vocabulary
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.models.beam import Hypothesis
from headgates.models.description import most_tokens
from headgates.models.line_translator import LineTranslator
from headgates.models.search import best_hypotheses
from headgates.models.transformer import Transformer


class Translator(LineTranslator):
    """A model with its vocabularies and search settings: the `LineTranslator` that holds a model of ours.

    shortlist: search computes the target pieces that it lists for a batch's sources, and no others; scores
    are of all pieces. Raises ValueError where model and vocabularies number their special tokens
    differently, and DataError where the shortlist is for others."""

    def __init__(
        self,
        model: Transformer,
        source_vocab: Vocabulary,
        target_vocab: Vocabulary,
        search: SearchConfig | None = None,
        shortlist: Shortlist | None = None,
    ):
        sides = (
            ("source", model.source_specials, source_vocab),
            ("target", model.target_specials, target_vocab),
        )
        for side, model_specials, vocab in sides:
            if model_specials != vocab.specials:
                raise ValueError(
                    f"the model numbers the {side} side's special tokens as {model_specials}, its "
                    f"vocabulary as {vocab.specials}; "
                    f"make the model with the vocabulary's, or load the vocabulary with the model's"
                )
        self.model, self.source_vocab, self.target_vocab = model, source_vocab, target_vocab
        self.search, self.max_positions = search or SearchConfig(), most_tokens(model.config)
        self.shortlist = shortlist and shortlist.check(model.source_vocab, model.target_vocab)

    def with_model(self, model: Transformer) -> "Translator":
        """The translator of another model with the same vocabularies."""
        return Translator(model, self.source_vocab, self.target_vocab, self.search, self.shortlist)

    def in_bf16(self) -> "Translator":
        """A copy whose weights are rounded to bf16."""
        return self.with_model(copy.deepcopy(self.model).bfloat16())

    def with_shortlist(self, shortlist: Shortlist | None) -> "Translator":
        """The same model with another shortlist, or with none."""
        return Translator(self.model, self.source_vocab, self.target_vocab, self.search, shortlist)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters(), torch.empty(0)).device  # an exported program has none

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return self.source_vocab.encode(list(lines))

    def search_batch(self, sources: list[list[int]], search: SearchConfig) -> list[list[Hypothesis]]:
        source = pad(sources, self.model.source_specials, end=True).to(self.device)
        with evaluation_mode(self.model):
            return best_hypotheses(self.model, source, search, self.candidates(sources))

    @torch.inference_mode()
    def score_batch(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        source = pad(sources, self.model.source_specials, end=True).to(self.device)
        target = pad(targets, self.model.target_specials, begin=True, end=True).to(self.device)
        with evaluation_mode(self.model):
            return token_log_probs(self.model, source, target).tolist()


def token_log_probs(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Return the natural-log probability (B, T) of each token after the first of target (B, T + 1); 0 at
    padding."""
    logits = model(source, target[:, :-1]).float()
    out = target[:, 1:]
    log_p = torch.log_softmax(logits, -1).gather(2, out[:, :, None]).squeeze(2)
    return log_p.masked_fill(out == model.target_specials.padding, 0.0)

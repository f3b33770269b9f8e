"""One face for every model: translate lines, score pairs. runfolder/source.py opens the model of a run:

translator = open_source("runs/toy-en-de-l0-0.01-s1").translator
translator.translate(["The dog sleeps."])
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headgates.configs.schema import SearchConfig
from headgates.data.batch import pad
from headgates.data.vocab import Vocabulary
from headgates.gates import HeadSite, find_sites
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.models.line_translator import LineTranslator, Translation
from headgates.models.search import Hypothesis, beam_search, greedy_search
from headgates.models.transformer import Transformer


class Translator(LineTranslator):
    """A model with its vocabularies and search settings: the `LineTranslator` that holds a model of ours.

    Raises ValueError where model and vocabularies number their special tokens differently."""

    def __init__(
        self,
        model: Transformer,
        source_vocab: Vocabulary,
        target_vocab: Vocabulary,
        search: SearchConfig | None = None,
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
        self.search = search or SearchConfig()

    @property
    def device(self) -> torch.device:
        return self.model.output.weight.device

    @property
    def max_positions(self) -> int | None:
        """The most tokens that a line may have, the end counted; None where positions have no end."""
        config = self.model.config
        return config.max_positions if config.positions == "learned" else None

    @property
    def sites(self) -> dict[HeadSite, nn.Module]:
        """The model's head sites."""
        return find_sites(self.model)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return self.source_vocab.encode(list(lines))

    def translate_n_best(
        self, lines: Sequence[str], *, beam: int | None = None, length_penalty: float | None = None
    ) -> list[list[Translation]]:
        beam, penalty = self.search_options(beam, length_penalty)
        ids = self.encode(lines)
        results: list[list[Translation]] = [[Translation("", 0.0, 0.0, 0)] for _ in ids]
        options: dict[str, Any] = {
            "length_penalty": penalty,
            "max_ratio": self.search.max_ratio,
            "max_extra": self.search.max_extra,
        }
        with evaluation_mode(self.model):
            for chosen in self.search_batches([len(sentence) for sentence in ids], beam):
                source = pad([ids[i] for i in chosen], self.model.source_specials, end=True).to(self.device)
                if beam == 1:
                    n_best: list[list[Hypothesis]] = [
                        [hypothesis] for hypothesis in greedy_search(self.model, source, **options)
                    ]
                else:
                    n_best = beam_search(self.model, source, beam=beam, **options)
                texts = iter(
                    self.target_vocab.decode([hypothesis.ids for best in n_best for hypothesis in best])
                )
                for i, best in zip(chosen, n_best, strict=True):
                    results[i] = [Translation(next(texts), h.log_prob, h.score, len(h.ids) + 1) for h in best]
        return results

    @torch.inference_mode()
    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        source_ids, target_ids = self.encode_pairs(sources, targets)
        results: list[list[float]] = [[] for _ in sources]
        lengths = [max(len(s), len(t)) + 1 for s, t in zip(source_ids, target_ids, strict=True)]
        with evaluation_mode(self.model):
            for chosen in self.search_batches(lengths, 1):
                source = pad([source_ids[i] for i in chosen], self.model.source_specials, end=True).to(
                    self.device
                )
                target = pad(
                    [target_ids[i] for i in chosen], self.model.target_specials, begin=True, end=True
                ).to(self.device)
                log_p = token_log_probs(self.model, source, target)
                for i, row in zip(chosen, log_p.tolist(), strict=True):
                    results[i] = row[len(self.model.target_specials.forced) : len(target_ids[i]) + 1]
        return results


def check_size(side: str, pieces: int, vocab: Vocabulary) -> None:
    """Raises ValueError where a vocabulary has another number of pieces than the model's embedding."""
    if len(vocab) != pieces:
        raise ValueError(
            f"the model has {pieces} pieces on the {side} side, and its vocabulary {vocab.path} has "
            f"{len(vocab)}: it is another model's; "
            "copy the right one, or repeat the run with --fresh"
        )


def token_log_probs(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """Return the natural-log probability (B, T) of each token after the first of target (B, T + 1); 0 at
    padding."""
    logits = model(source, target[:, :-1]).float()
    out = target[:, 1:]
    log_p = torch.log_softmax(logits, -1).gather(2, out[:, :, None]).squeeze(2)
    return log_p.masked_fill(out == model.target_specials.padding, 0.0)

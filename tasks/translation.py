"""Translation: label-smoothed cross-entropy per target token, BLEU and chrF of beam search.

The loss of a step is the sum over its target tokens, padding left out, of the cross-entropy, divided by their
number.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headgates.analysis.batches import sampled_targets
from headgates.analysis.metrics import CHRF, Metric, bleu_of
from headgates.configs.fields import to_dict
from headgates.configs.settings import Settings, read_search
from headgates.configs.stages import DistillConfig
from headgates.data import Corpus, load_corpus
from headgates.data.batch import Batch
from headgates.data.corpus import make_vocabs
from headgates.data.shortlist import SHORTLIST_FILE, shortlist_in
from headgates.data.vocab import NORMALIZATION, load_vocabs, normalization_of
from headgates.models.checkpoint import architecture, load_model, save_model
from headgates.models.description import check_size
from headgates.models.distillation import distilled_cross_entropy
from headgates.models.loss import linear_cross_entropy
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from headgates.tasks.base import Task

LOGIT_ROWS = 256  # target positions whose logits are in memory at once


def in_few_shapes(model: Any, batch: Batch) -> Batch:
    """The batch; in bf16 on a CPU `square`. There each product of a new shape takes longer to prepare than to
    compute, and Multi30k has 31 square shapes, others 51, for 0.5% more tokens."""
    if not torch.is_autocast_enabled("cpu"):
        return batch
    return batch.square(model.source_specials, model.target_specials)


class Translation(Task):
    """Sentences of one language to sentences of another, by our encoder-decoder Transformer."""

    searches = True

    @property
    def own_metrics(self) -> tuple[Metric, ...]:
        return bleu_of(self.target_language), CHRF

    def load_text(self, settings: Mapping[str, Any]) -> Corpus:
        data, folder, src, tgt = (settings.get(name) for name in ("data", "data_dir", "src", "tgt"))
        return load_corpus(data, data_dir=folder, src=src, tgt=tgt)

    def cache_key(self, config: Settings) -> dict[str, Any]:
        rules = [normalization_of(str(language)) for language in (config.src, config.tgt)]
        return {} if {*rules} == {NORMALIZATION} else {"normalization": rules}

    def prepare_folder(self, folder: Path, corpus: Corpus, config: Settings) -> None:
        make_vocabs(
            corpus,
            folder,
            size=config.text.vocab_size,
            joint=config.text.joint,
            pairs=config.text.vocab_pairs,
        )

    def new_predictor(self, folder: Path, config: Settings) -> Translator:
        source_vocab, target_vocab = load_vocabs(folder)
        source, target = source_vocab.specials, target_vocab.specials
        model = Transformer(
            config.model, len(source_vocab), len(target_vocab), source_specials=source, target_specials=target
        )
        return Translator(model, source_vocab, target_vocab, config.search)

    def load_predictor(self, folder: Path, checkpoint: Path, settings: Mapping[str, Any]) -> Translator:
        model = load_model(checkpoint)
        vocabs = load_vocabs(folder, model.source_specials, model.target_specials)
        check_size("source", model.source_vocab, vocabs[0])
        check_size("target", model.target_vocab, vocabs[1])
        search = read_search(settings.get("search", {}), folder)
        return Translator(model, *vocabs, search, shortlist_in(checkpoint.parent))

    def describe(self, model: Any) -> dict[str, Any]:
        return {"architecture": architecture(model)}

    def save_model(self, path: Path, predictor: Any) -> None:
        save_model(path, predictor.model)
        if predictor.shortlist is not None:
            predictor.shortlist.write(path.parent / SHORTLIST_FILE)

    def loss(self, model: Any, batch: Batch, *, smoothing: float = 0.0) -> Tensor:
        output, padding, batch = model.output, model.target_specials.padding, in_few_shapes(model, batch)
        return linear_cross_entropy(
            self.states(model, batch),
            output.weight,
            batch.target_out,
            padding=padding,
            smoothing=smoothing,
            bias=output.bias,
        )

    def losses(self, model: Any, batch: Batch) -> Tensor:
        states, ids = self.states(model, batch), batch.target_out
        real = ids != model.target_specials.padding
        parts = zip(states[real].split(LOGIT_ROWS), ids[real].split(LOGIT_ROWS), strict=True)
        each = torch.cat([F.cross_entropy(model.output(z), y, reduction="none") for z, y in parts])
        return each.new_zeros(real.shape).masked_scatter(real, each).sum(1)

    def states(self, model: Any, batch: Batch) -> Tensor:
        """The decoder states (B, T, D) of every target position."""
        return model.decode(*model.encode(batch.source), batch.target_in)

    def sampled(self, model: Any, batch: Batch, generator: torch.Generator) -> Batch:
        """Each target token anew, after the given ones before it. None becomes padding, which has no loss."""
        return sampled_targets(model, batch, generator)

    def distilled_loss(
        self, model: Any, teacher: Any, batch: Batch, *, smoothing: float, distill: DistillConfig
    ) -> Tensor:
        batch = in_few_shapes(model, batch)
        with torch.no_grad():
            taught = self.states(teacher, batch)
        return distilled_cross_entropy(
            (self.states(model, batch), model.output),
            (taught, teacher.output),
            batch.target_out,
            padding=model.target_specials.padding,
            smoothing=smoothing,
            weight=distill.weight,
            temperature=distill.temperature,
        )

    def top_logits(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        hidden, real = self.states(model, batch), batch.target_out != model.target_specials.padding
        best = torch.zeros_like(batch.target_out)
        with torch.no_grad():  # never all logits at once
            best[real] = torch.cat([model.output(part).argmax(1) for part in hidden[real].split(LOGIT_ROWS)])
        top = (hidden * model.output.weight[best]).sum(-1)
        return (top if model.output.bias is None else top + model.output.bias[best]) * real, real

    def counted(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, targets = model(batch.source, batch.target_in).flatten(0, 1), batch.target_out.flatten()
        padding = model.target_specials.padding
        right = (logits.argmax(1) == targets) & (targets != padding)
        return F.cross_entropy(logits, targets, ignore_index=padding, reduction="sum"), right.sum()

    def validation(self, loss: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"loss": loss, "perplexity": loss.exp(), "token_accuracy": right}

    def predict(self, predictor: Any, lines: Sequence[str], *, quick: bool = False) -> list[str]:
        return predictor.translate(lines, beam=1) if quick else predictor.translate(lines)

    def prediction_settings(self, predictor: Any, *, quick: bool = False) -> dict[str, Any]:
        return {"search": to_dict(predictor.search.usual_batch()) | ({"beam": 1} if quick else {})}

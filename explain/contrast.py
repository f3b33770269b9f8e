"""What `analyze.py --contrast` measures: which heads a model needs to prefer the right of two outputs,
exactly. m = log p(right) - log p(wrong), in nats.

Columns of the table `contrast-NAME`, a row a head, each with the ends of its 95% interval over the contrasts,
p and p by Holm:

    effect   m(all heads) - m(the head closed)
    patch    m(source) - m(source, the head as on the corrupted source): what it carries of the difference
    direct   the same with all other heads as on the source: what it carries to the output itself
    into     the same where it reaches one receiver's q, k or v alone (`contrast_into`)

The last three where there are corrupted sources, over contrasts whose two sources have as many pieces. Heads
of which closing costs something by every other contrast (or `contrast_heads`) are then closed, and left alone
open, on the contrasts between these: necessity and sufficiency, beside random sets of as many heads at the
same sites."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from headgates.analysis.contrasts import alike_pairs, mean_changes, pair_values, set_effects
from headgates.analysis.patching import Patching
from headgates.analysis.results import AnalysisResult
from headgates.analysis.significance import LEVEL
from headgates.analysis.without_heads import all_heads, closing, heads_at
from headgates.configs.cli import config_hash
from headgates.configs.did_you_mean import did_you_mean
from headgates.data.batch import pad
from headgates.data.contrast import NAMED, Contrast, read_contrasts, without_mark
from headgates.data.special_tokens import MOST_UNKNOWN
from headgates.data.text_file import unpacked_name
from headgates.explain.ablation import least_resamples
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.sentence_model import LOGITS
from headgates.gates import HeadMap
from headgates.gates.headmap import Head, head_name
from headgates.models.translator import Translator, token_log_probs
from headgates.records.table import TableRow


@dataclass(frozen=True)
class Outputs:
    """A batch of B contrasts: the source of each, (B, S), and both outputs, (2 B, T + 1), all right ones
    first."""

    source: Tensor
    target: Tensor

    def to(self, device: torch.device) -> "Outputs":
        return Outputs(self.source.to(device), self.target.to(device))


def preference(model: Any, batch: Outputs) -> Tensor:
    """log p(right) - log p(wrong) of every contrast, (B,), in nats."""
    log_p = token_log_probs(model, batch.source.repeat(2, 1), batch.target).double().sum(1)
    right, wrong = log_p.chunk(2)
    return right - wrong


@dataclass(frozen=True)
class EncodedContrasts:
    """Contrasts in the ids of a translator's vocabularies, without special tokens but the end of an output
    that is no beginning."""

    translator: Translator
    sources: list[list[int]]
    corrupted: list[list[int]] | None
    right: list[list[int]]
    wrong: list[list[int]]
    differences: list[tuple[frozenset[str], frozenset[str]]]  # words that only one side has

    @classmethod
    def of(cls, translator: Translator, contrasts: Sequence[Contrast], name: str) -> "EncodedContrasts":
        """Raises ValueError where the vocabularies do not know the words."""
        vocabs = translator.source_vocab, translator.target_vocab

        def ids(lines: Sequence[str], side: int) -> list[list[int]]:
            found = [list(each) for each in vocabs[side].encode(list(lines))]
            if (share := vocabs[side].specials.unknown_share(found)) > MOST_UNKNOWN:
                raise ValueError(
                    f"--contrast {name}: the model's vocabulary cannot encode {share:.0%} of the "
                    f"{('source', 'output')[side]} pieces; give contrasts in the model's languages"
                )
            return found

        def outputs(lines: Sequence[str]) -> list[list[int]]:
            texts, begins = zip(*map(without_mark, lines), strict=True)
            end = [vocabs[1].specials.end]
            return [own + end * (not open_) for own, open_ in zip(ids(texts, 1), begins, strict=True)]

        corrupted = [each.corrupted for each in contrasts if each.corrupted is not None]
        return cls(
            translator,
            ids([each.source for each in contrasts], 0),
            ids(corrupted, 0) if corrupted else None,
            outputs([each.right for each in contrasts]),
            outputs([each.wrong for each in contrasts]),
            [each.difference for each in contrasts],
        )

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def equal(self) -> list[int]:
        """The numbers of the contrasts whose two sources have as many pieces."""
        both = zip(self.sources, self.corrupted or [], strict=False)
        return [i for i, (source, other) in enumerate(both) if len(source) == len(other)]

    def units(self, numbers: Sequence[int]) -> list[int]:
        """Of each of these contrasts the unit whose luck it shares."""
        return alike_pairs([self.differences[number] for number in numbers])

    def batches(self, numbers: Sequence[int], *, corrupted: bool = False) -> Iterator[Outputs]:
        """These contrasts in their order. corrupted: with those sources."""
        vocab = self.translator.target_vocab
        sources = self.corrupted if corrupted and self.corrupted is not None else self.sources
        longest = max(len(each) for each in (*self.right, *self.wrong))
        size = max(1, LOGITS // (2 * len(vocab) * longest))
        for begin in range(0, len(numbers), size):
            part = numbers[begin : begin + size]
            targets = [outputs[i] for outputs in (self.right, self.wrong) for i in part]
            yield Outputs(
                pad([sources[i] for i in part], self.translator.source_vocab.specials, end=True),
                pad(targets, vocab.specials, begin=True),
            )


# ---------------------------------------------------------------- the analysis


def contrast(analysed: AnalysedModel) -> AnalysisResult:
    """The effects of every head on the contrasts of --contrast. Raises ValueError at contrasts that are not
    in the model's languages, and at heads or a receiver that it lacks."""
    config = analysed.config
    assert config.contrast is not None
    name, slug = config.contrast, contrast_slug(config.contrast)
    contrasts = read_contrasts(name)
    check_language(analysed, name)
    encoded = EncodedContrasts.of(analysed.source.translator, contrasts, name)
    model = analysed.predictor.model
    everything = closing(all_heads(model))
    looked_at = everything.select(config.attention)
    heads = heads_at(looked_at)
    by_name = {head_name(head): head for head in heads_at(everything)}
    named = [known(by_name, each) for each in config.contrast_heads]
    receiver = receiver_of(by_name, config.contrast_into)
    numbers = range(len(encoded))
    analysed.report(f"contrast {name}: {len(encoded)} contrasts without each of {len(heads)} heads")
    closings = [HeadMap({}), everything, *(closing([head]) for head in heads)]
    clean, none, *alone = pair_values(model, encoded.batches(numbers), closings, preference)
    changes, units = {"effect": clean - torch.stack(alone)}, {"effect": encoded.units(numbers)}
    facts: dict[str, Any] = {
        "name": name,
        "slug": slug,
        "contrasts": len(encoded),
        "units": len({*units["effect"]}),
        "right": float((clean > 0).double().mean()),
        "clean": float(clean.mean()),
        "none": float(none.mean()),
    }
    equal = encoded.equal
    if encoded.corrupted is not None:
        analysed.report(f"contrast {name}: {len(equal)} contrasts patched")
        if not equal:
            raise ValueError(
                f"--contrast {name}: the two sources of no contrast have as many pieces, and a head is "
                "patched between equal lengths; leave the corrupted sources out, or choose other words"
            )
        patched, corrupted = patches(analysed, encoded, equal, heads, receiver)
        changes |= patched
        units |= dict.fromkeys(patched, encoded.units(equal))
        facts |= {"patched": len(equal), "corrupted": corrupted, "into": config.contrast_into}
    elif receiver is not None:
        raise ValueError(f"contrast_into needs corrupted sources, and {name} has none: give 4 columns a line")
    rows = head_rows(heads, changes, units)
    if not named:
        first = numbers[::2]
        half = mean_changes(changes["effect"][:, ::2], least_resamples(len(heads)), encoded.units(first))
        named = [
            head
            for head, row in zip(heads, half, strict=True)
            if row["p_value_holm"] < LEVEL and row["mean"] > 0
        ]
    facts["named"] = [head_name(head) for head in named]
    if 0 < len(named) < len(by_name):
        held_out = range(1, len(encoded), 2)
        analysed.report(f"contrast {name}: {len(named)} heads and random sets on {len(held_out)} contrasts")
        effects = set_effects(model, encoded.batches(held_out), closing(named), preference)
        facts |= {
            "held_out": len(held_out),
            "held_out_clean": float(clean[1::2].mean()),
            **{key: asdict(each) for key, each in zip(("without", "alone"), effects, strict=True)},
        }
    maps = {column: looked_at.like(change.mean(1)) for column, change in changes.items()}
    return AnalysisResult(maps, facts, {f"contrast-{slug}": rows})


def contrast_settings(analysed: AnalysedModel) -> dict[str, Any]:
    config = analysed.config
    contrasts = [vars(each) for each in read_contrasts(config.contrast or "")]
    return {
        "contrast": config.contrast,
        "contrasts": config_hash({"contrasts": contrasts}),
        "into": config.contrast_into,
        "named": config.contrast_heads,
    }


def patches(
    analysed: AnalysedModel,
    encoded: EncodedContrasts,
    numbers: Sequence[int],
    heads: Sequence[Head],
    receiver: tuple[str, Head] | None,
) -> tuple[dict[str, Tensor], float]:
    """What each head carries, by column, (heads, contrasts), and the mean preference on corrupted sources."""
    model = analysed.predictor.model
    columns: dict[str, Callable[[Patching, HeadMap], Tensor]] = {
        "patch": Patching.activation,
        "direct": Patching.path,
    }
    if receiver is not None:
        into = {receiver[0]: closing([receiver[1]])}
        columns["into"] = lambda patching, head: patching.path(head, into=into)
    found: dict[str, list[Tensor]] = {column: [] for column in columns}
    corrupted: list[float] = []
    both = zip(encoded.batches(numbers), encoded.batches(numbers, corrupted=True), strict=True)
    for batch, other in both:
        patching = Patching(model, batch, other, preference)
        corrupted += patching.corrupted.tolist()
        for column, patch in columns.items():
            values = torch.stack([patch(patching, closing([head])) for head in heads])
            found[column].append((patching.clean - values).cpu())
    return {column: torch.cat(parts, 1) for column, parts in found.items()}, fmean(corrupted)


def head_rows(
    heads: Sequence[Head], changes: dict[str, Tensor], units: dict[str, list[int]]
) -> list[TableRow]:
    """A row a head: its place, and each column with interval and p-values."""
    rows = [site.row(head) for site, head in heads]
    for column, change in changes.items():
        tested = mean_changes(change, least_resamples(len(heads)), units[column])
        for row, found in zip(rows, tested, strict=True):
            row[column] = found.pop("mean")
            row |= {f"{column}_{key}": value for key, value in found.items()}
    return rows


# ---------------------------------------------------------------- what the settings name


def contrast_slug(name: str) -> str:
    """A contrast's name in those of files: toy-number, or the folder's and the file's own without its last
    ending."""
    prefix, colon, own = name.partition(":")
    path = Path(name)
    words = [prefix, own] if colon and prefix in NAMED else [path.parent.name, Path(unpacked_name(path)).stem]
    return "-".join(filter(None, words))


def check_language(analysed: AnalysedModel, name: str) -> None:
    """Raises ValueError where contrasts by name are not of the run's text or languages."""
    prefix, config = name.partition(":")[0], analysed.source.config
    own = f"{config.get('src')}-{config.get('tgt')}"
    if prefix in NAMED and not (analysed.corpus.name == prefix or own == prefix):
        raise ValueError(
            f"--contrast {name} is for a run on {prefix} text; {analysed.folder.path} is {own} on "
            f"{analysed.corpus.name}: give a file of contrasts"
        )


def known(by_name: dict[str, Head], name: str) -> Head:
    if name not in by_name:
        raise ValueError(f"the model has no head {name!r}{did_you_mean(name, by_name)}; heads count from 0")
    return by_name[name]


def receiver_of(by_name: dict[str, Head], text: str | None) -> tuple[str, Head] | None:
    """The part and the head of a receiver such as decoder.0.cross.3.v."""
    if text is None:
        return None
    name, _, part = text.rpartition(".")
    if part not in ("q", "k", "v"):
        raise ValueError(
            f"contrast_into: expected a head's q, k or v, such as decoder.0.cross.3.v, got {text!r}"
        )
    return part, known(by_name, name)

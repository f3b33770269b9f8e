"""In which order heads are closed: scores of every head, the lowest closed first.   Michel et al. 2019, sections 4.1 and 4.2.

    gradient      what the loss says of it: E|dL/dxi|, l2 within each layer
    ablation      validation BLEU lost when the head alone is closed: the paper's dashed lines
    random        one draw a seed: what an order must beat
    weight-norm   |W_O W_V|_F, without any data
    reverse       gradient with the sign turned: the heads that matter most go first

To add one: a function of (subject, config, seed, report) that gives a HeadMap, and a line in ORDERS (its name in configs/prune.py too).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from analysis.importance import importance
from analysis.weight_norm import weight_norm
from configs.prune import PruneConfig
from gates import KINDS, HeadMap, find_sites
from models.progress import Report
from pruning.ablated_stats import measure
from pruning.ablation import by_site, chosen_sites, only
from pruning.subject import Subject

Score = Callable[[Subject, PruneConfig, int, Report], HeadMap]


# ---------------------------------------------------------------- scores


def gradient_scores(subject: Subject, config: PruneConfig, seed: int, report: Report) -> HeadMap:
    """Michel's importance over the training pairs, kept in scores/; of a run's plain form, fit.py may have it already."""
    del seed
    name = scores_name("gradient", config)
    theirs = f"gradient-{subject.corpus.digest()}{f'-{config.sentences}' if config.sentences else ''}"
    for known in (name, *((theirs,) if config.abs == "sentence" else ())):
        if (subject.folder / f"scores/{known}.json").is_file() and not config.fresh:
            return HeadMap.load(subject.folder / f"scores/{known}.json")
    report(f"{name}: one forward and backward pass over the training pairs")
    return importance(subject.translator.model, subject.train_batches(config.sentences), absolute=config.abs)


def ablation_scores(subject: Subject, config: PruneConfig, seed: int, report: Report) -> HeadMap:
    """Validation BLEU of the whole model minus that without the head; below 0 where the model is better without it."""
    del seed
    sites = chosen_sites(subject.translator, config.kinds)
    alone = [only(site, head, closed=True) for site in sites for head in range(site.heads)]
    name = f"scores/{scores_name('ablation', config)}"
    found = measure(subject.translator, subject.valid, alone, folder=subject.folder, name=name, fresh=config.fresh, report=report)
    return HeadMap(by_site(sites, [found.base.bleu - system.bleu for system in found.systems]))


def random_scores(subject: Subject, config: PruneConfig, seed: int, report: Report) -> HeadMap:
    """The seed's draw."""
    del config, report
    return random_map(subject.translator.model, seed)


def random_map(model: nn.Module, seed: int) -> HeadMap:
    """Uniform in [0, 1) for every head of a model; the same heads of the same seed, whatever the kinds."""
    generator = torch.Generator().manual_seed(seed)
    return HeadMap({site: torch.rand(site.heads, generator=generator, dtype=torch.float64) for site in find_sites(model)})


def weight_scores(subject: Subject, config: PruneConfig, seed: int, report: Report) -> HeadMap:
    """The norm of what the head writes."""
    del config, seed, report
    return weight_norm(subject.translator.model)


@dataclass(frozen=True)
class Order:
    """Scores, and what is made of them: sign -1 closes the highest first; l2 within each layer unless --normalise says otherwise."""

    score: Score
    scores: str  # the file name's beginning in scores/
    l2: bool = False
    sign: int = 1
    gradient: bool = False  # takes --abs, --sentences and --recompute
    seeds: bool = False  # one curve a seed

    def normalise(self, config: PruneConfig) -> bool:
        return self.l2 if config.normalise is None else config.normalise == "l2"

    def ranked(self, scores: HeadMap, config: PruneConfig) -> HeadMap:
        """Scores ready to be ordered, the first head to close lowest."""
        scores = scores.l2_per_layer() if self.normalise(config) else scores
        return scores.map(lambda row: self.sign * row)

    def rescored(self, subject: Subject, config: PruneConfig, closed: HeadMap) -> HeadMap:
        """--recompute: gradient scores with these heads shut, of those kinds; 0 for the closed ones, which the order then leaves out."""
        kinds = list(dict.fromkeys(site.kind for site in closed))
        batches = subject.train_batches(config.sentences)
        return importance(subject.translator.model, batches, absolute=config.abs, kinds=kinds, closed=closed)


ORDERS: dict[str, Order] = {
    "gradient": Order(gradient_scores, "gradient", l2=True, gradient=True),
    "ablation": Order(ablation_scores, "ablation"),
    "random": Order(random_scores, "random", seeds=True),
    "weight-norm": Order(weight_scores, "weight-norm"),
    "reverse": Order(gradient_scores, "gradient", l2=True, sign=-1, gradient=True),
}


# ---------------------------------------------------------------- from scores to closed heads


def targets(heads: int, step: float) -> list[int]:
    """Closed heads at each step of a curve: ceil(heads * i * step) from 0 until all, each number once.   As the paper's code counts."""
    counts = {0}
    for i in range(1, math.ceil(1 / step - 1e-9) + 1):
        counts.add(min(heads, math.ceil(heads * i * step - 1e-9)))  # 10 * 3 * 0.1 is a little above 3
    return sorted(counts | {heads})


def close_lowest(scores: HeadMap, closed: HeadMap, count: int, *, at_least: int = 0) -> list[int]:
    """Which open heads to close, in order, so that `count` are closed: their places in `scores.flat()`.

    A head is passed over where its layer would be left with fewer than `at_least`; so they may be fewer than asked for. Equal scores go in
    the order of sites and heads. Raises ValueError at scores that are not finite."""
    flat, shut = scores.flat().double(), closed.flat().tolist()
    if not torch.isfinite(flat).all():
        raise ValueError("scores hold NaN or infinity, so heads cannot be ordered; look for a loss that turned NaN")
    layer = [number for number, site in enumerate(scores) for _ in range(site.heads)]
    left = [site.heads - int(closed[site].sum()) for site in scores]
    chosen: list[int] = []
    for place in torch.sort(flat, stable=True).indices.tolist():
        if len(chosen) + sum(shut) >= count:
            break
        if not shut[place] and left[layer[place]] > at_least:
            left[layer[place]] -= 1
            chosen.append(place)
    return chosen


# ---------------------------------------------------------------- names of files


def scores_name(order: str, config: PruneConfig, seed: int | None = None) -> str:
    """Of the scores' file, with all that they depend on beside the model."""
    parts = [ORDERS[order].scores]
    if ORDERS[order].gradient:
        parts += [config.abs] * (config.abs != "sentence") + [f"n{config.sentences}"] * (config.sentences > 0)
    if order == "ablation":
        parts += [f"beam{config.beam}"] * (config.beam > 1) + [f"v{config.valid_sentences}"] * (config.valid_sentences > 0)
        parts += kinds_name(config.kinds)
    if seed is not None:
        parts.append(f"seed{seed}")
    return "-".join(parts)


def curve_name(order: str, config: PruneConfig, kinds: Sequence[str]) -> str:
    """Of the curve's files: the order, and each setting that is not the usual one."""
    parts, how = [order], ORDERS[order]
    if how.gradient:
        parts += [config.abs] * (config.abs != "sentence") + [f"n{config.sentences}"] * (config.sentences > 0)
        parts += ["recompute"] * config.recompute
    if how.normalise(config) != how.l2:
        parts.append("l2" if how.normalise(config) else "raw")
    if how.seeds:
        parts += [f"{config.random_seeds}seeds"] * (config.random_seeds != 5) + [f"from{config.seed}"] * (config.seed != 1)
    parts += [f"step{config.step:g}"] * (config.step != 0.1) + [f"atleast{config.at_least}"] * (config.at_least > 0)
    parts += [f"beam{config.beam}"] * (config.beam > 1)
    parts += [f"v{config.valid_sentences}"] * (config.valid_sentences > 0) + [f"t{config.test_sentences}"] * (config.test_sentences > 0)
    return "-".join(parts + kinds_name(kinds))


def kinds_name(kinds: Sequence[str]) -> list[str]:
    """Nothing for all kinds."""
    chosen = [kind for kind in KINDS if kind in kinds]
    return [] if len(chosen) == len(KINDS) else ["+".join(chosen)]


def figure_name(config: PruneConfig) -> str:
    """Of the figure with all curves of a command."""
    if config.each_kind:
        names = [curve_name(order, config, KINDS) for order in config.orders]
        return "-".join(["+".join(names), "by-kind", *kinds_name(config.kinds)])
    return "+".join(curve_name(order, config, config.kinds) for order in config.orders)

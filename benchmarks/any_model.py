"""`hg.prune` beside what people use today: six models made faster, loss against measured speed, in one run.

    pip install torch-pruning
    python -m benchmarks.toy_bases --data FOLDER --encoder FOLDER --out BASES
    python -m benchmarks.any_model --data FOLDER --encoder FOLDER --bases BASES --record

    headgates           hg.prune(model, batches, speedup=1.5), 2 and 3
    even cut            each layer keeps the same share of its heads and neurons, the highest by importance
    taylor, magnitude   Torch-Pruning's choice by these importances, local (the same share in each layer) and
                        global; whole heads, and neurons

All get the same batches. A rival is made at a grid of shares, which is its curve, and once more at the share
where the curve reaches the speed that headgates was measured to have at --speed. Those models are timed in
turns, and some are trained: headgates, the even cut and the best of Torch-Pruning's on the validation part,
shortly and with several seeds; and the even cut's shape from random weights, for as long as the model itself
and this training together. What was chosen is told apart from the refit by two more: headgates without it,
and the even cut with it. Losses are of the test part, on which nothing was chosen.
"""

import argparse
import copy
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers.models.llama import modeling_llama
from transformers.pytorch_utils import Conv1D

import headgates as hg
from benchmarks.benchmark import Answer, Flag, run
from benchmarks.toy_bases import BASES, FOLDERS, Base, loss_of, outcomes, train
from headgates.analysis.batches import known_tokens, passed
from headgates.analysis.scores.importance import raw_importance
from headgates.analysis.seed_luck import difference_of_means, seed_variance
from headgates.analysis.significance import RESAMPLES, resample_counts
from headgates.gates import ALL_KINDS, FFN_KINDS, KINDS, HeadMap, HeadSite, Subnet, find_sites
from headgates.gates.rules import rule_of
from headgates.gates.site_rule import attribute, group_of, projection
from headgates.lab.measure import alternate, ratio_by_round
from headgates.planning.plan_text import PlanText

Model = Any
Choice = Callable[[float], Subnet]  # share that goes -> what stays
NEURONS = 16  # stay in multiples of it, as with hg.prune
SHARES = (0.35, 0.7)  # of a rival's curve, with two more near the speed
ROUNDS = 7  # of the timing in turns
TRAINING = 10  # the base's steps by this
SEEDS = (2, 3, 4)  # of the training


# ---------------------------------------------------------------- time


@torch.no_grad()
def speeds(whole: Model, models: Sequence[Model], batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How many times as fast as the whole model each is by CPU seconds, in turns, as `ratio_by_round`."""
    passes = {place: partial(model, **batch) for place, model in enumerate((whole, *models))}
    full, *others = alternate(passes, rounds=ROUNDS, clock=time.process_time).values()
    return [ratio_by_round(full, each) for each in others]


# ---------------------------------------------------------------- the rivals


def even_cut(whole: Model, scores: HeadMap) -> Choice:
    def choose(share: float) -> Subnet:
        closed = {}
        for site, module in find_sites(whole, ALL_KINDS).items():
            group = group_of(module, rule_of(module))  # heads that share a key head
            step = NEURONS if site.kind in FFN_KINDS else group
            stays = max(1, round((1 - share) * site.heads / step)) * step
            row = scores[site].view(-1, group).sum(1).repeat_interleave(group)
            closed[site] = torch.ones(site.heads, dtype=torch.bool)
            closed[site][row.argsort(descending=True, stable=True)[:stays]] = False
        return Subnet.of(whole).without(HeadMap(closed))

    return choose


class Parts(nn.Module):
    """GPT-2's fused projection as three, whose parts its attention asks for by `split`."""

    def __init__(self, fused: Conv1D):
        super().__init__()
        weights, biases = fused.weight.T.chunk(3), fused.bias.chunk(3)
        self.parts = nn.ModuleList(map(linear, weights, biases))

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(split=lambda *_, **__: [part(x) for part in self.parts])


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias is not None)
    made.load_state_dict({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
    return made


def traceable(whole: Model) -> Model:
    """A copy with the same outputs in which Torch-Pruning finds the heads: with nn.Linear for Conv1D, a key
    head for each of Llama's heads, and without a gradient for T5's table of distances, which it would take
    for a layer between all attentions."""
    model = copy.deepcopy(whole)
    for module in [*model.modules()]:
        if (group := getattr(module, "num_key_value_groups", 1)) > 1:
            for name in ("k_proj", "v_proj"):
                heads = getattr(module, name).weight.unflatten(0, (-1, module.head_dim))
                setattr(module, name, linear(heads.repeat_interleave(group, 0).flatten(0, 1)))
            module.num_key_value_groups = 1
        for name, child in [*module.named_children()]:
            if isinstance(child, Conv1D):
                fused = child.nf == 3 * child.nx
                setattr(module, name, Parts(child) if fused else linear(child.weight.T, child.bias))
    for name, weight in model.named_parameters():
        weight.requires_grad_("relative_attention_bias" not in name)
    return model


def rivals(whole: Model, base: Base) -> dict[str, Choice]:
    kinds = sorted({site.kind for site in find_sites(whole, ALL_KINDS)})
    found = {"even cut": even_cut(whole, raw_importance(whole, base.fit, kinds=kinds, queries=one_for_each))}
    for taylor, everywhere in product((True, False), (False, True)):
        label = f"{'Taylor' if taylor else 'magnitude'}, {'global' if everywhere else 'local'}"
        found[label] = torch_pruning(whole, base, taylor, everywhere)
    return found


def one_for_each(_: nn.Module, __: HeadSite, batch: Mapping[str, Any]) -> Any:
    """(B, 1) bool: every example counts once."""
    return torch.ones(len(batch["labels"]), 1, dtype=torch.bool)


def torch_pruning(whole: Model, base: Base, taylor: bool, everywhere: bool) -> Choice:
    """What Torch-Pruning chooses, called as in its examples for Transformers; heads that share a key head are
    one head to it. The Subnet removes it, from the model itself."""
    import torch_pruning as tp

    example, slopes = traceable(whole), list[Any]()
    if taylor:
        for batch in base.fit:
            example(**batch).loss.backward()
        slopes = [each.grad for each in example.parameters()]
        example.zero_grad(set_to_none=True)
    importance = tp.importance.TaylorImportance() if taylor else tp.importance.MagnitudeImportance(p=2)
    names = {module: name for name, module in whole.named_modules()}

    def choose(share: float) -> Subnet:
        model = copy.deepcopy(example)
        for each, slope in zip(model.parameters(), slopes, strict=False):
            each.grad = None if slope is None else slope.clone()
        number, inner, outs = dict[nn.Module, int](), set[nn.Module](), dict[nn.Module, HeadSite]()
        for site, module in find_sites(whole, ALL_KINDS).items():
            rule, twin = rule_of(module), model.get_submodule(names[module])
            outs[projection(twin, rule.out)] = site
            linears = [
                each
                for name in rule.inputs
                for each in attribute(twin, name, "a projection").modules()
                if isinstance(each, nn.Linear)
            ]
            if site.kind in KINDS:
                number |= dict.fromkeys(linears, site.heads // group_of(module, rule))
            else:
                inner |= {*linears}
        # rotary positions keep every row in its head, and their slices take minutes to trace
        with patch.object(modeling_llama, "apply_rotary_pos_emb", lambda q, k, *_: (q, k)):
            pruner = tp.pruner.BasePruner(
                model,
                {name: each[:2] for name, each in base.fit[0].items()},
                importance=importance,
                global_pruning=everywhere,
                pruning_ratio=share,
                head_pruning_ratio=share,
                max_pruning_ratio=0.95,
                num_heads=number,
                prune_num_heads=True,
                prune_head_dims=False,
                round_to=NEURONS,
                ignored_layers=[
                    each
                    for each in model.modules()
                    if not any(each.children()) and any(True for _ in each.parameters())
                    if each not in number and each not in inner
                ],
                output_transform=lambda output: output.logits.sum(),
            )
        closed = {site: torch.zeros(site.heads, dtype=torch.bool) for site in outs.values()}
        for group in pruner.step(interactive=True):
            for dependency, columns in group:
                own = outs.get(dependency.target.module)
                if own and pruner.DG.is_in_channel_pruning_fn(dependency.handler):
                    width = dependency.target.module.in_features // own.heads
                    closed[own][[column // width for column in columns]] = True
            group.prune()
        return Subnet.of(whole).without(HeadMap(closed))

    return choose


# ---------------------------------------------------------------- what is compared


def made(whole: Model, subnet: Subnet, text: Sequence[Mapping[str, Any]] = ()) -> Model:
    """The smaller model, refitted as by hg.prune where there is text."""
    model = copy.deepcopy(whole)
    if text:
        hg.reconstruct(model, subnet.closing, text, passed, positions=known_tokens)
    subnet.remove(model)
    return model


def share_for(curve: Sequence[tuple[float, float]], wanted: float) -> float:
    """The share at which a curve of (share, times as fast) reaches a speed."""
    shares, reached = zip(*sorted(curve), strict=True)
    return float(np.interp(wanted, np.maximum.accumulate(reached), shares))


def difference(systems: Sequence[Tensor], reference: Sequence[Tensor], prefix: str) -> dict[str, float]:
    """The difference of two ways' mean losses, with its 95% interval over examples and seeds. systems,
    reference: their `outcomes` for each seed."""
    counts, values, sampled = resample_counts(len(reference[0]), RESAMPLES), list[Any](), list[Any]()
    for seeds in (systems, reference):
        sums = [counts @ each.numpy() for each in seeds]
        sampled.append([each[:, 0] / each[:, 2] for each in sums])
        values.append([nats / labels for nats, _, labels in (each.sum(0).tolist() for each in seeds)])
    apart = fmean(values[0]) - fmean(values[1])
    apart_sampled = np.mean(sampled[0], axis=0) - np.mean(sampled[1], axis=0)
    (low, high), p = difference_of_means(apart, apart_sampled, *map(seed_variance, values, sampled))
    named = {"difference": apart, "difference_low": low, "difference_high": high, "p": p}
    return {f"{prefix}{name}": value for name, value in named.items()}


def quality(seeds: Sequence[Tensor], prefix: str = "") -> dict[str, float]:
    """Mean loss per label and accuracy over seeds."""
    sums = [each.sum(0).tolist() for each in seeds]
    return {
        f"{prefix}loss": fmean(nats / labels for nats, _, labels in sums),
        f"{prefix}accuracy": fmean(right / labels for _, right, labels in sums),
    }


def rows_of(base: Base, whole: Model, speedups: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Points of the curves, then a row for each way to the first of the speeds."""
    batch, text = base.fit[len(base.fit) // 2], PlanText.of(whole, base.fit).fit
    models, subnets = {"unpruned": whole}, dict[str, Subnet]()

    def point(what: str, model: Model, **more: float) -> dict[str, Any]:
        (found,) = speeds(whole, [model], batch)
        row = {"what": what, "curve": True, **more, **spread(found)}
        return row | quality([outcomes(model, base.test)])

    for asked in speedups:
        model, begin = copy.deepcopy(whole), time.process_time()
        report = hg.prune(model, base.fit, speedup=asked, run=lambda model: model(**batch))
        print(report, flush=True)
        own = point("headgates", model, asked=asked, choice_seconds=time.process_time() - begin)
        if asked == speedups[0]:
            wanted, models["headgates"] = own["speed"], model
            models["headgates, no refit"] = made(whole, report.subnet)
        yield own
    for label, choose in rivals(whole, base).items():
        curve = [(0.0, 1.0)]
        for place in range(len(SHARES) + 2):
            share = SHARES[place] if place < len(SHARES) else share_for(curve, wanted)
            subnets[label] = choose(share)
            models[label] = made(whole, subnets[label])
            own = point(label, models[label], share=share)
            curve.append((share, own["speed"]))
            yield own
    models["even cut, refitted"] = made(whole, subnets["even cut"], text)
    found = dict(zip(models, speeds(whole, [*models.values()], batch), strict=True))

    theirs = {label: loss_of(models[label], base.valid) for label in subnets if label != "even cut"}
    best, short = min(theirs, key=lambda label: theirs[label]), base.steps // TRAINING
    tested = {label: [outcomes(model, base.test)] for label, model in models.items()}
    trained: dict[str, list[Tensor]] = {}
    for label in ("headgates", "even cut", best):
        trained[label] = []
        for seed in SEEDS:
            model = copy.deepcopy(models[label])
            train(model, base, steps=short, lr=base.lr / 4, seed=seed)
            trained[label].append(outcomes(model, base.test))
    torch.manual_seed(1)
    new = made(base.make(), subnets["even cut"])
    train(new, base, steps=base.steps + short, lr=base.lr, seed=1)
    models["new"], found["new"], trained["new"] = new, found["even cut"], [outcomes(new, base.test)]
    for label, model in models.items():
        row = {"what": label, "curve": False, "best": label == best, **spread(found[label])}
        row["parameters"] = sum(each.numel() for each in model.parameters())
        for prefix, seeds in (("", tested.get(label)), ("trained_", trained.get(label))):
            if seeds:
                row |= quality(seeds, prefix)
            if seeds and label != "headgates":
                row |= difference(seeds, (trained if prefix else tested)["headgates"], prefix)
        yield row | ({"trained_steps": short} if label in trained else {})


def spread(found: Mapping[str, Any]) -> dict[str, float]:
    return {"speed": found["median"], "speed_lowest": found["lowest"], "speed_highest": found["highest"]}


def answer(options: argparse.Namespace) -> Answer:
    warnings.filterwarnings("ignore", module="torch_pruning")
    rows = []
    for name in options.base or [*BASES]:
        folder = options.bases / name
        about = json.loads((folder / "training.json").read_text())
        base = replace(BASES[name](options.data, options.encoder), steps=about["steps"])
        whole = type(base.make()).from_pretrained(folder).eval()
        for row in rows_of(base, whole, options.speedup):
            rows.append({"base": name, **row, **(about if row["what"] == "unpruned" else {})})
            print(rows[-1], flush=True)
    columns = ("base", "what", "speed", "loss", "accuracy", "trained_loss")
    table = [[row.get(column, "") for column in columns] for row in rows]
    table = [[f"{cell:.3f}" if isinstance(cell, float) else cell for cell in row] for row in table]
    return Answer(
        {"speedups": options.speedup, "rows": rows}, columns, table, peers=["transformers", "torch-pruning"]
    )


FLAGS: list[Flag] = [
    *(
        (flag, {"type": Path, "required": True, "help": meaning})
        for flag, meaning in (FOLDERS | {"--bases": "what benchmarks.toy_bases wrote"}).items()
    ),
    (
        "--base",
        {"action": "append", "choices": [*BASES], "help": "this one alone; several times for several"},
    ),
    (
        "--speedup",
        {
            "type": float,
            "nargs": "+",
            "default": [2.0, 1.5, 3.0],
            "help": "all are compared at the first (default: 2 1.5 3)",
        },
    ),
]

if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    question = "which smaller model has the least loss at the same measured speed?"
    sys.exit(run("any_model", question, __doc__, FLAGS, answer))

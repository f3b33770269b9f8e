"""`hg.prune` beside what people use today: six models made twice as fast, in one run.

    pip install torch-pruning
    python -m benchmarks.toy_bases --data FOLDER --encoder FOLDER --out BASES
    python -m benchmarks.any_model --data FOLDER --encoder FOLDER --bases BASES --record

    headgates           hg.prune(model, batches, speedup=2)
    uniform             each layer keeps the same share of its heads and neurons, the highest by importance
    taylor, magnitude   importances of Torch-Pruning, local (the same share in each layer) and global; heads
                        and neurons go, as its examples for Transformers do with the option for inner widths

A rival's share is searched until it is as fast as the model of headgates was measured to be. All get the same
batches. All models are then timed in turns, and their losses are those of the test part, before and after the
same short training. The best of Torch-Pruning's four is chosen on the validation part and trained.
"""

import argparse
import copy
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from torch import nn

import headgates as hg
from benchmarks.benchmark import Answer, Flag, run
from benchmarks.toy_bases import BASES, Base, train
from headgates.analysis.scores.importance import raw_importance
from headgates.gates import ALL_KINDS, FFN_KINDS, KINDS, HeadMap, HeadSite, Subnet, find_sites
from headgates.gates.rules import rule_of
from headgates.gates.site_rule import attribute, group_of, projection

Model = Any
Cut = Callable[[float], Model]  # share that goes -> the smaller model
NEURONS = 16  # stay in multiples of it, as with hg.prune
SLOWER = 0.97  # a rival may be this much slower than the model of headgates
HALVINGS = 4  # of the interval of a rival's share
ROUNDS = 9  # of the timing in turns
TRAINING = 8  # the base's steps by this
TIMED = 1  # batches


# ---------------------------------------------------------------- time and loss


def seconds(model: Model, base: Base) -> float:
    """CPU seconds of a forward pass of some batches."""
    with torch.no_grad():
        start = time.process_time()
        passes(timed(base), model)
        return time.process_time() - start


def passes(batches: Sequence[Mapping[str, Any]], model: Model) -> None:
    for batch in batches:
        model(**batch)


def timed(base: Base) -> Sequence[Mapping[str, Any]]:
    return base.fit[len(base.fit) // 2 :][:TIMED]


def speed(model: Model, base: Base, whole: Model, rounds: int = 3) -> list[float]:
    """How many times as fast as the whole model, in turns."""
    seconds(model, base), seconds(whole, base)
    return [seconds(whole, base) / seconds(model, base) for _ in range(rounds)]


def in_turns(models: Mapping[str, Model], base: Base, whole: Model) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(ROUNDS):
        full = seconds(whole, base)
        for name, model in models.items():
            found[name].append(full / seconds(model, base))
    return found


@torch.no_grad()
def quality(model: Model, batches: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """loss: the mean over what has a label; accuracy: the share of labels that have the largest logit."""
    loss = right = count = 0.0
    for batch in batches:
        output, labels = model(**batch), batch["labels"]
        logits = output.logits
        if not model.config.is_encoder_decoder and labels.dim() == 2:  # a causal model
            logits, labels = logits[:, :-1], labels[:, 1:]
        own = (labels != -100).sum().item()
        loss += output.loss.item() * own
        right += (logits.argmax(-1) == labels).sum().item()
        count += own
    return {"loss": loss / count, "accuracy": right / count}


# ---------------------------------------------------------------- the rivals


def as_fast(cut: Cut, wanted: float, base: Base, whole: Model) -> Model:
    """The model of the least share that is about as fast as wanted. Raises ValueError where none is."""
    low, high = 0.0, 0.97
    best: Model = None
    for _ in range(HALVINGS):
        share = (low + high) / 2
        model = cut(share)
        if median(speed(model, base, whole)) >= SLOWER * wanted:
            high, best = share, model
        else:
            low = share
    if best is None:
        raise ValueError(f"no share is {wanted:.2f} times as fast")
    return best


def one_for_each(_: nn.Module, __: HeadSite, batch: Mapping[str, Any]) -> Any:
    """(B, 1) bool: every example counts once."""
    return torch.ones(len(batch["labels"]), 1, dtype=torch.bool)


def uniform(whole: Model, scores: HeadMap) -> Cut:
    def cut(share: float) -> Model:
        model, closed = copy.deepcopy(whole), {}
        for site, module in find_sites(model, ALL_KINDS).items():
            step = NEURONS if site.kind in FFN_KINDS else group_of(module, rule_of(module))
            stays = max(1, round((1 - share) * site.heads / step)) * step
            row = scores[site].view(-1, group_of(module, rule_of(module))).sum(1)
            row = row.repeat_interleave(site.heads // len(row))
            closed[site] = torch.ones(site.heads, dtype=torch.bool)
            closed[site][row.argsort(descending=True, stable=True)[:stays]] = False
        Subnet.of(model).without(HeadMap(closed)).remove(model)
        return model

    return cut


def torch_pruning(whole: Model, base: Base, taylor: bool, whole_model: bool, heads: bool) -> Cut:
    """Torch-Pruning as its examples for Transformers call it. The numbers of heads that it leaves are written
    into the modules, as there."""
    import torch_pruning as tp

    slopes: list[Any] = [None for _ in whole.parameters()]
    if taylor:
        for batch in base.fit:
            whole(**batch).loss.backward()
        slopes = [each.grad for each in whole.parameters()]
        whole.zero_grad(set_to_none=True)

    def cut(share: float) -> Model:
        model = copy.deepcopy(whole)
        sites = find_sites(model, ALL_KINDS)
        number: dict[nn.Module, int] = {}  # projection -> its heads
        kept = [model.get_output_embeddings() if model.can_generate() else getattr(model, "classifier", None)]
        for site, module in sites.items():
            rule = rule_of(module)
            kept.append(projection(module, rule.out))  # its outputs are the stream
            for name in (rule.q, rule.k, rule.v) if site.kind in KINDS else ():
                own = site.heads if name == rule.q else site.heads // group_of(module, rule)
                number[projection(module, name)] = own
        inner = {projection(module, name) for module in sites.values() for name in rule_of(module).inner}
        kept += [each for each in model.modules() if leaf(each) and each not in inner and each not in number]
        if not heads:
            kept += [*number]
        pruner = tp.pruner.BasePruner(
            model,
            {name: each[:2] for name, each in base.fit[0].items()},
            importance=tp.importance.TaylorImportance() if taylor else tp.importance.MagnitudeImportance(p=2),
            global_pruning=whole_model,
            pruning_ratio=share,
            head_pruning_ratio=min(share, 0.99) if heads else 0.0,
            max_pruning_ratio=0.95,
            num_heads=number,
            prune_num_heads=heads,
            prune_head_dims=False,
            round_to=NEURONS if not heads else None,
            ignored_layers=[each for each in kept if each is not None],
            output_transform=lambda output: output.logits.sum(),
        )
        for each, slope in zip(model.parameters(), slopes, strict=True):
            each.grad = None if slope is None else slope.clone()
        for group in pruner.step(interactive=True):
            group.prune()
        model.zero_grad(set_to_none=True)
        for site, module in sites.items():
            if site.kind in KINDS:
                say_heads(module, pruner.num_heads)
        model(**base.fit[0])
        if not any(
            before.shape != after.shape
            for before, after in zip(whole.parameters(), model.parameters(), strict=True)
        ):
            raise ValueError("nothing was pruned")
        return model

    return cut


def leaf(module: nn.Module) -> bool:
    return not any(module.children()) and any(True for _ in module.parameters())


def say_heads(module: nn.Module, number: Mapping[nn.Module, int]) -> None:
    """Write the heads that stay into an attention."""
    rule = rule_of(module)
    query, key = projection(module, rule.q), projection(module, rule.k)
    written = {rule.heads: number[query], **dict.fromkeys(rule.widths, query.out_features)}
    if group_of(module, rule) > 1:
        written[rule.group] = number[query] // number[key]
    for path, value in written.items():
        *above, name = path.split(".")
        owner = attribute(module, ".".join(above), "heads") if above else module
        if name in vars(owner):
            setattr(owner, name, value)


# ---------------------------------------------------------------- one base


def rows_of(name: str, base: Base, whole: Model, wanted: float) -> list[dict[str, Any]]:
    """A row for each way to make the model smaller, and one for the model itself."""
    begin = time.process_time()
    ours = copy.deepcopy(whole)
    forward = partial(passes, timed(base))
    report = hg.prune(ours, base.fit, speedup=wanted, run=forward, report=partial(print, flush=True))
    print(f"{name}: {time.process_time() - begin:.0f} CPU seconds\n{report}", flush=True)
    models, said = {"headgates": ours}, dict[str, str]()
    reached = median(speed(ours, base, whole, ROUNDS))
    kinds = {site.kind for site in find_sites(whole, ALL_KINDS)}
    scores = raw_importance(whole, base.fit, kinds=sorted(kinds), queries=one_for_each)
    rivals = {"uniform": [uniform(whole, scores)]}
    for taylor in (True, False):
        for everywhere in (False, True):
            label = f"{'taylor' if taylor else 'magnitude'}, {'global' if everywhere else 'local'}"
            rivals[label] = [torch_pruning(whole, base, taylor, everywhere, heads) for heads in (True, False)]
    for label, cuts in rivals.items():
        for cut, words in zip(cuts, ("", " (neurons alone)"), strict=False):
            try:
                models[label + words] = as_fast(cut, reached, base, whole)
                break
            except Exception as error:  # of another library, of whatever kind: the row says it
                said[label + words] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
                print(f"{name}, {label + words}: {said[label + words]}", flush=True)
    speeds = in_turns(models, base, whole)
    rows: list[dict[str, Any]] = [
        {"base": name, "what": "unpruned", "speed": 1.0, **qualities("", whole, base)}
    ]
    for label, model in models.items():
        row: dict[str, Any] = {
            "base": name,
            "what": label,
            "speed": median(speeds[label]),
            **qualities("", model, base),
        }
        row |= {"speed_lowest": min(speeds[label]), "speed_highest": max(speeds[label])}
        row["parameters"] = sum(each.numel() for each in model.parameters())
        rows.append(row)
    theirs = [row for row in rows if row["what"] not in ("unpruned", "headgates", "uniform")]
    trained = {
        "headgates",
        "uniform",
        *(row["what"] for row in sorted(theirs, key=lambda row: row["valid_loss"])[:1]),
    }
    steps = base.steps // TRAINING
    for row in rows:
        row["best_of_its_library"] = row["what"] in trained
        if row["what"] in trained:
            model = models[row["what"]]
            train(model, base, steps=steps, lr=base.lr / 4, seed=2)
            row |= {"trained_steps": steps, **qualities("trained_", model, base)}
        print(
            {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()},
            flush=True,
        )
    return rows + [{"base": name, "what": label, "said": words} for label, words in said.items()]


def qualities(prefix: str, model: Model, base: Base) -> dict[str, float]:
    parts = {"valid": base.valid, "test": base.test}
    return {
        f"{prefix}{part}_{name}": value
        for part, batches in parts.items()
        for name, value in quality(model, batches).items()
    }


def answer(options: argparse.Namespace) -> Answer:
    warnings.filterwarnings("ignore", module="torch_pruning")
    rows = []
    for name in options.base or [*BASES]:
        base = BASES[name](options.data, options.encoder)
        whole = type(base.make()).from_pretrained(options.bases / name).eval()
        rows += rows_of(name, base, whole, options.speedup)
    header = [
        "base",
        "made smaller by",
        "times as fast",
        "test loss",
        "accuracy",
        "trained: loss",
        "accuracy",
    ]
    return Answer({"speedup": options.speedup, "rows": rows}, header, [line(row) for row in rows])


def line(row: Mapping[str, Any]) -> list[str]:
    if "said" in row:
        return [row["base"], row["what"], row["said"], "", "", "", ""]
    names = ("test_loss", "test_accuracy", "trained_test_loss", "trained_test_accuracy")
    speeds = f"{row['speed']:.2f}"
    if "speed_lowest" in row:
        speeds += f" ({row['speed_lowest']:.2f} to {row['speed_highest']:.2f})"
    return [row["base"], row["what"], speeds, *(f"{row[name]:.3f}" if name in row else "" for name in names)]


def main() -> int:
    folders: list[Flag] = [
        (f"--{name}", {"type": Path, "required": True, "help": meaning})
        for name, meaning in (
            ("data", "the texts, a folder each"),
            ("encoder", "all-MiniLM-L6-v2, saved by transformers"),
            ("bases", "what benchmarks.toy_bases wrote"),
        )
    ]
    flags: list[Flag] = [
        *folders,
        (
            "--base",
            {"action": "append", "choices": [*BASES], "help": "this one alone; several times for several"},
        ),
        ("--speedup", {"type": float, "default": 2.0, "help": "(default: %(default)s)"}),
    ]
    question = "which smaller model has the least loss at the same measured speed?"
    return run("any_model", question, __doc__, flags, answer, ["transformers", "torch-pruning"])


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    sys.exit(main())

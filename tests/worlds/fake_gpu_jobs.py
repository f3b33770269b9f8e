"""What is done on the CPU and on the emulated GPU, and compared: all that the library does with a model.

python -m tests.worlds.fake_gpu_jobs     # a process of its own, since torch keeps the device's name for good
python -m tests.worlds.fake_gpu_jobs --device cuda     # the same on a real one

A job takes `here`, which puts a model or a batch where the job runs, and returns what it found. Written on
stdout as JSON: job -> what went wrong, the functions of gates/ and analysis/ that the jobs called, and which
mixtures of devices were refused.
"""

import argparse
import copy
import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import fields, is_dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from headgates.analysis.alignment import Alignment, Entropy
from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.batches import batch_loss, query_tokens
from headgates.analysis.causal_gating import causal_gates, spreads
from headgates.analysis.closing import close_to
from headgates.analysis.confidence import confidence
from headgates.analysis.contrasts import mean_changes, pair_values, set_effects
from headgates.analysis.interactions import interactions
from headgates.analysis.levels import Levels, level_losses
from headgates.analysis.lrp import relevance, relevance_score
from headgates.analysis.optimal_ablation import fold_optimal
from headgates.analysis.patching import Patching
from headgates.analysis.positions import Positions
from headgates.analysis.rare_words import RareWords, token_counts
from headgates.analysis.ratio_walk import RatioWalk
from headgates.analysis.scores.exact_effects import exact_effects
from headgates.analysis.scores.fisher import fisher, rearranged
from headgates.analysis.scores.fluctuation import fluctuation
from headgates.analysis.scores.importance import importance, raw_importance
from headgates.analysis.scores.integrated import gradient, integrated
from headgates.analysis.scores.loss_swaps import loss_swapped
from headgates.analysis.scores.obs import obs
from headgates.analysis.scores.random_score import random_score
from headgates.analysis.scores.swaps import swapped
from headgates.analysis.scores.weight_norm import weight_norm
from headgates.analysis.syntax import Syntax
from headgates.analysis.without_heads import all_heads, closing
from headgates.configs.stages import StageConfig
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import (
    ALL_KINDS,
    HeadMap,
    Subnet,
    attach,
    detach,
    find_sites,
    fold_mean,
    heads_left,
    load_pruned,
    reattach,
    reconstruct,
    remove,
    resampled,
    save_pruned,
    set_heads_left,
    zero_heads,
)
from headgates.gates.depth import drop_layers, layers_left, set_layers_left, skipped
from headgates.gates.prices import unit_prices
from headgates.hf import HeadGates
from headgates.lightning_modules.module import StageModule
from headgates.models.ablated_search import ablated_translations
from headgates.models.cpu_kernels import change_dropout
from headgates.models.sublayers import sublayers
from headgates.planning.prune import prune
from headgates.planning.timing import Timer
from headgates.tasks.translation import Translation
from tests.renumbered import LINES, twins
from tests.renumbered import batches as renumbered
from tests.worlds.fake_gpu import NAME, fake_gpu, register
from tests.worlds.families import BY_NAME, Family
from tests.worlds.one_by_one import VOCAB, in_batches, random_model, random_pairs

ROOT = Path(__file__).parents[2]
PAIRS = random_pairs()[:7]
BATCHES = in_batches(PAIRS[:6], 3)  # on the CPU: what reads them takes them to the model
Here = Callable[[Any], Any]
Job = Callable[[Here], Any]
JOBS: dict[str, Job] = {}
DEVICE = NAME  # a real one's name, such as cuda, by --device


def job(work: Job) -> Job:
    JOBS[work.__name__] = work
    return work


def still(model: nn.Module) -> nn.Module:
    """Without dropout, for which a GPU and a CPU draw numbers in their own ways."""
    change_dropout(model, 0.0)
    return model


def second(model: nn.Module, kinds: Any = None) -> HeadMap:
    """True at the second head or neuron of every site, where heads share none."""
    return HeadMap(
        {site: torch.arange(site.heads) == 1 for site in find_sites(model, kinds) if site.heads > 1}
    )


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in model.state_dict().items()}


# ---------------------------------------------------------------- gates and training


def trained(model: nn.Module, loss: Callable[[], Tensor], **gates: Any) -> list[Any]:
    """Losses of two steps with gates, and what the gates are then."""
    bank = attach(model.train(), **gates)
    # no Adam, which makes steps of rounding errors where a gradient is 0, as that to a key's bias
    optimizer = torch.optim.SGD(bank.param_groups(lr=0.01))
    found: list[Any] = []
    for step in range(2):
        torch.manual_seed(step)  # the emulated device draws from the CPU's generator
        optimizer.zero_grad()
        total = loss() + bank.loss(step)
        total.backward()
        optimizer.step()
        found.append(total.detach())
    return [*found, bank.values(), bank.to_json()]


@job
def gates_learn(here: Here) -> Any:
    batch = here(BATCHES[0])
    found = []
    for options in (
        dict(lam=0.1, kinds=ALL_KINDS),
        dict(gate="subset", heads=9),
        dict(lam=0.1, kinds=ALL_KINDS, multiple=2),
    ):
        model = here(still(random_model()))
        found += trained(model, lambda model=model: batch_loss(model, batch) / 9, **options)
        bank = model.head_gates
        bank.sample()
        found += [bank.open_prob(), bank.open(), bank.penalty(), state(model)]
        bank.binarise()
        found += [remove(model, bank), batch_loss(model.eval(), batch)]
    return found


@job
def masks(here: Here) -> Any:
    model, batch = here(random_model()), here(BATCHES[0])
    bank = attach(model, gate="mask")
    bank.assign({site: torch.rand(site.heads, generator=torch.Generator()) for site in bank.sites})
    by_head = batch_loss(model, batch)
    bank.assign({site: torch.rand(len(batch), site.heads) < 2 for site in bank.sites})
    by_sentence = batch_loss(model, batch)
    detach(model)
    reattach(model, bank)
    return [by_head, by_sentence, batch_loss(model, batch)]


# ---------------------------------------------------------------- scores


SCORES: dict[str, Callable[..., HeadMap]] = {
    score.__name__: score
    for score in (
        *(exact_effects, importance, raw_importance, fisher, fluctuation, obs, gradient),
        *(integrated, relevance_score, confidence, weight_norm),
    )
}


@job
def scores(here: Here) -> Any:
    return {name: score(here(random_model()), BATCHES[:1]) for name, score in SCORES.items()}


@job
def scores_of_neurons(here: Here) -> Any:
    kinds = {name: dict(kinds=ALL_KINDS) for name in ("importance", "fluctuation", "obs", "weight_norm")}
    return {name: SCORES[name](here(random_model()), BATCHES, **each) for name, each in kinds.items()}


@job
def choices(here: Here) -> Any:
    model = here(random_model())
    scores = random_score(model, seed=1)
    closed = close_to(HeadMap({site: scores[site] for site in scores if site.heads}), 9, model=model)
    kept = {}
    for way in (rearranged, swapped, loss_swapped):
        kept[way.__name__] = way(here(random_model()), BATCHES[:1], closed)
    return kept, unit_prices(find_sites(model, ALL_KINDS))


# ---------------------------------------------------------------- causes and looks


@job
def causes(here: Here) -> Any:
    model, heads, text = here(random_model()), all_heads(random_model()), BATCHES[:1]
    fits = causal_gates(model, text, seeds=2, updates=1)
    return [
        interactions(model, text, heads[:3], exact_effects(model, text)),
        mean_changes(pair_values(model, text, [closing(heads[:2])], lead), 7),
        set_effects(model, text, closing(heads[:4]), lead, sets=2),
        [fit.quantities for fit in fits],
        spreads(fits),
    ]


@torch.no_grad()
def lead(model: Any, batch: Any) -> Tensor:
    """Of each pair the logit of token 5 minus that of 7, at the first step."""
    logits = model(batch.source, batch.target_in)[:, 0]
    return logits[:, 5] - logits[:, 7]


@job
def relevances(here: Here) -> Any:
    model = here(random_model().double())
    found = [relevance(model, BATCHES, aggregation=each).head_maps() for each in ("step", "sum")]
    return [*found, relevance(model, BATCHES, walk=RatioWalk).head_maps()]


@job
def patches(here: Here) -> Any:
    batch, other = in_batches([PAIRS[1]], 1)[0], in_batches([(PAIRS[1][0][::-1], PAIRS[1][1])], 1)[0]
    model = here(random_model())
    patching = Patching(model, batch, other, lead)
    first, *_, last = all_heads(model)
    paths = [patching.path(closing([first]), into={part: closing([last])}) for part in "qkv"]
    return [patching.activation(closing([first])), patching.path(closing([first])), paths]


class Tree(NamedTuple):
    """A sentence whose second word governs the others; the first is its subject."""

    words: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, words: int) -> "Tree":
        others = words - 2
        return cls(("w",) * words, (2, 0, *[2] * others), ("nsubj", "ROOT", *["obj"] * others))


@job
def looks(here: Here) -> Any:
    model = here(random_model())
    counts = token_counts([pair[0] for pair in PAIRS], VOCAB)
    gold = {number: [(0, 0)] for number, pair in enumerate(PAIRS) if min(map(len, pair))}
    words = {number: list(range(len(source))) for number, (source, _) in enumerate(PAIRS) if len(source) > 3}
    trees = {number: Tree.of(len(each)) for number, each in words.items()}
    rare, alignment, entropy, positions = RareWords(counts, 5), Alignment(gold), Entropy(), Positions()
    syntax = Syntax(trees, words, ["nsubj", "obj"], samples=7)
    observe_attention(model, BATCHES, [rare, alignment, entropy, positions, syntax])
    return [
        *(rare.rarest(), rare.two_rarest(), rare.chance()),
        *(alignment.agreement(), alignment.baseline(), entropy.nats(), entropy.relative()),
        *(positions.best(), positions.offsets(), syntax.rows()),
    ]


# ---------------------------------------------------------------- closing and removal


@job
def closings(here: Here) -> Any:
    """Every way to close heads for good, and what is left of the model."""
    forward, batches, found = batch_loss, [here(batch) for batch in BATCHES], []
    ways: list[Callable[[nn.Module, HeadMap], Any]] = [
        zero_heads,
        lambda model, closed: reconstruct(
            model, closed, batches, forward, positions=query_tokens, sublayers=sublayers, values=True
        ),
        lambda model, closed: fold_mean(model, closed, batches, forward, positions=query_tokens),
        lambda model, closed: fold_optimal(model, closed, BATCHES, forward, positions=query_tokens, steps=3),
    ]
    for close in ways:
        model = here(random_model().double())
        closed = second(model, ALL_KINDS) if close is not ways[-1] else second(model)
        found.append(close(model, closed))
        found += [state(model), remove(model, closed), batch_loss(model, batches[0])]
    model = here(random_model())
    with resampled(model, second(model), batches, forward, positions=query_tokens):
        return [*found, batch_loss(model, batches[0])]


@job
def subnets(here: Here) -> Any:
    model, batch = here(random_model()), here(BATCHES[0])
    subnet = Subnet.of(model).without(second(model, ALL_KINDS), layers={"encoder": [0], "decoder": [1]})
    with subnet.closed(model):
        closed = batch_loss(model, batch)
    found = [closed, batch_loss(model, batch), subnet.parameters(model), subnet.words]
    with skipped(model, {"decoder": [0]}):
        found.append(batch_loss(model, batch))
    subnet.remove(model)
    return [*found, batch_loss(model, batch), heads_left(model), layers_left(model), state(model)]


@job
def folded(here: Here) -> Any:
    model, batch = here(random_model()), here(BATCHES[0])
    xi = HeadMap({site: torch.full((site.heads,), 0.5) for site in find_sites(model)})
    return [remove(model, second(model), fold=xi), batch_loss(model, batch)]


@job
def levels(here: Here) -> Any:
    model = here(random_model())
    sites = [site for site in find_sites(model, ALL_KINDS) if site.heads]
    order = weight_norm(model, kinds=ALL_KINDS)
    found = Levels(model, BATCHES, order, {site: [0, site.heads // 2] for site in sites})
    rises = level_losses(found, BATCHES, found.widths)
    units = sum(batch.target_tokens for batch in BATCHES)  # a sum of 150 nats is known to 1.5e-5 in fp32
    return [{each: rise / units for each, rise in rises.items()}]


# ---------------------------------------------------------------- our own Transformer


@job
def searches(here: Here) -> Any:
    """Greedy and beam search, before and after removal; the lines' scores; translations under masks."""
    translator = twins(SpecialTokens())[0]
    model = translator.model = here(translator.model)
    masks = [second(model), closing(all_heads(model)[:1])]
    ablated = [ablated_translations(translator, LINES[:4], masks, beam=beam) for beam in (1, 2)]
    found = [translator.translate_n_best(LINES), translator.score(LINES[:3], ["5 7", "18 4 9", "6"]), ablated]
    remove(model, second(model, ALL_KINDS))
    return [*found, translator.translate_n_best(LINES), translator.translate(LINES, beam=1)]


@job
def a_step_of_our_stage(here: Here) -> Any:
    """What the Lightning module does with a batch and its optimizer, and validation after it."""
    translator = twins(SpecialTokens())[0]
    translator.model = here(translator.model)
    stage = StageConfig(optimizer="adamw", lr=0.01, warmup_steps=1, label_smoothing=0.1, bleu_sentences=0)
    module, batch = StageModule(Translation(), translator, stage, seed=1), here(renumbered(translator)[0])
    found = []
    module.seen = module.seen.to(batch.source.device)  # as Lightning does
    optimizer = module.configure_optimizers()["optimizer"]
    for _ in range(2):
        optimizer.zero_grad()
        loss = module.loss(module.model, batch)
        loss.backward()
        optimizer.step()
        found.append(loss)
    module.eval()
    module.validation_step(batch, 0)
    return [*found, module.seen]


# ---------------------------------------------------------------- other libraries

# a family for each way in which heads are held, removed and kept by a smaller class
OTHERS = (
    *("Marian", "T5", "FSMT", "BERT", "GPT-2", "Llama", "BLOOM"),
    *("torch.nn.Transformer", "torch.nn.TransformerEncoder"),
)


def with_family(family: Family, here: Here) -> Any:
    """Gates, a repair, removal, and a saved folder."""
    theirs = family.library == "transformers"
    model, batch = here(family.model()), here(family.batch(2))
    found = [family.output(model, batch)]
    share = {"share": "group"} if family.name == "Llama" else {}
    found += trained(model, lambda: family.output(model, batch).square().mean(), lam=0.1, **share)
    model.load_state_dict(model.state_dict())
    detach(model.eval())
    closed = HeadMap({site: torch.arange(site.heads) < site.heads // 3 for site in find_sites(model)})
    if theirs:
        found += reconstruct(model, closed, [family.batch(2)], family.output)
    found += [remove(model, closed), family.output(model, batch)]
    again = reloaded(model, None if theirs else family.build())
    set_heads_left(again, heads_left(model))
    return [*found, family.output(here(again), batch)]


def reloaded(model: nn.Module, new: nn.Module | None = None) -> nn.Module:
    with tempfile.TemporaryDirectory() as folder:
        return load_pruned(save_pruned(model, Path(folder) / "pruned"), model=new)


for name in OTHERS:
    JOBS[name] = partial(with_family, BY_NAME[name])


@job
def layers_of_others(here: Here) -> Any:
    found = []
    for name, stacks in {"BERT": ["encoder"], "GPT-2": ["decoder"], "T5": ["encoder", "decoder"]}.items():
        family = BY_NAME[name]
        model, batch = here(family.model()), here(family.batch(2))
        layers = {stack: [1] for stack in stacks}
        with skipped(model, layers):
            found.append(family.output(model, batch))
        drop_layers(model, layers)
        again = here(reloaded(model))
        set_layers_left(again, layers_left(model))
        found += [family.output(model, batch), family.output(again, batch), layers_left(model)]
    return found


@job
def pruned_in_one_call(here: Here) -> Any:
    model, batch = here(BY_NAME["BERT"].model()), BY_NAME["BERT"].batch(2)
    batch["labels"] = batch["input_ids"]
    prune(model, [batch] * 4, heads=4, choose="importance")
    return [heads_left(model, ALL_KINDS), layers_left(model), model(**here(batch)).loss]


@job
def pruned_to_a_speed(here: Here) -> Any:
    """By a clock that counts parameters, so that both devices time alike."""
    model, batch = here(BY_NAME["BERT"].model()), BY_NAME["BERT"].batch(2)
    batch["labels"] = batch["input_ids"]

    def seconds(timer: Timer, model: nn.Module) -> float:
        timer.run(model)
        return float(sum(each.numel() for each in model.parameters()))

    with patch.object(Timer, "seconds", seconds):
        report = prune(model, [batch] * 4, speedup=1.1, choose="importance")
    return [report.subnet.words, report.loss, report.speedup, model(**here(batch)).loss]


@job
def callbacks_learn(here: Here) -> Any:
    """What transformers' Trainer calls."""
    model, batch = here(BY_NAME["BERT"].model()).train(), here(BY_NAME["BERT"].batch(2))
    still(model)
    args = SimpleNamespace(deepspeed=None, fsdp=None, n_gpu=1, seed=0)
    state = SimpleNamespace(global_step=0, max_steps=4, stateful_callbacks={})
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.01), []
    gates = HeadGates(heads=4, neurons=16, warmup=1, refit=[dict(batch)])
    gates.on_train_begin(args, state, None, model=model)
    for step in range(4):
        optimizer.zero_grad()
        torch.manual_seed(step)
        gates.on_step_begin()
        loss = BY_NAME["BERT"].output(model, batch).square().mean()
        loss.backward()
        gates.on_pre_optimizer_step(optimizer=optimizer)
        optimizer.step()
        found.append(loss.detach())
    found.append(gates.bank.values())
    with redirect_stdout(StringIO()):
        gates.on_train_end()
    return [*found, heads_left(model, ALL_KINDS), BY_NAME["BERT"].output(model.eval(), batch)]


@job
def scores_of_others(here: Here) -> Any:
    found = []
    for name in ("BERT", "Llama"):
        model, batch = here(BY_NAME[name].model()), BY_NAME[name].batch(2)
        batch["labels"] = batch["input_ids"]
        scores = [importance, exact_effects, fluctuation, weight_norm, obs] if name == "BERT" else []
        found += [score(model, [batch]) for score in (relevance_score, *scores)]
        model.set_attn_implementation("eager")
        positions = Positions()
        observe_attention(model, [batch], [positions], special_ids=[3])
        found.append(positions.best())
    return found


# ---------------------------------------------------------------- both, and what differs


def parts(item: Any, path: str = "") -> dict[str, Any]:
    """Everything in what a job found by its path: tensors on the CPU, and what is no tensor."""
    if isinstance(item, Tensor):
        return {path: item.detach().cpu()}
    if is_dataclass(item) and not isinstance(item, type):
        item = {each.name: getattr(item, each.name) for each in fields(item)}
    if isinstance(item, list | tuple):
        item = dict(enumerate(item))
    if isinstance(item, Mapping):
        named = [(getattr(key, "name", key), each) for key, each in item.items()]
        return {at: found for key, each in named for at, found in parts(each, f"{path}/{key}").items()}
    return {path: item}


def difference(work: Job, called: set[str]) -> str:
    """What differs between the CPU and the device; "" where nothing does. called: gets what the job calls."""
    torch.manual_seed(0)
    with calls_seen(called):
        expected = parts(work(copy.deepcopy))
    torch.manual_seed(0)
    with on_the_device():
        found = parts(work(moved))
    if found.keys() != expected.keys():
        return f"only one of the two has {sorted(found.keys() ^ expected.keys())}"
    wrong = []
    for path, each in expected.items():
        try:
            if isinstance(each, Tensor | float):
                torch.testing.assert_close(found[path], each, rtol=1e-4, atol=1e-5, equal_nan=True)
            else:
                assert found[path] == each, f"{found[path]}, not {each}"
        except AssertionError as error:
            wrong.append(f"{path}: {error}")
    return "\n".join(wrong)


def moved(item: Any) -> Any:
    if isinstance(item, dict):
        return {name: moved(each) for name, each in item.items()}
    return copy.deepcopy(item).to(DEVICE)


def on_the_device() -> AbstractContextManager[None]:
    return fake_gpu() if DEVICE == NAME else nullcontext()


@contextmanager
def calls_seen(found: set[str]) -> Iterator[None]:
    """The functions of gates/ and analysis/ that are called meanwhile, `gates/remove.py:remove`."""
    codes = set()

    def see(frame: FrameType, event: str, _: Any) -> None:
        codes.add(frame.f_code)

    sys.settrace(see)
    try:
        yield
    finally:
        sys.settrace(None)
        for code in codes:
            path = Path(code.co_filename).resolve()
            if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ("gates", "analysis"):
                found.add(f"{path.relative_to(ROOT).as_posix()}:{code.co_qualname}")


def on_device(*shape: int) -> Tensor:
    return torch.ones(*shape, device=DEVICE)


# what CUDA refuses, and what it takes
MIXED: dict[str, Callable[[], Any]] = {
    "a batch on the CPU": lambda: nn.Linear(3, 2).to(DEVICE)(torch.ones(1, 3)),
    "an index on the device": lambda: torch.ones(3)[on_device(1).long()],
    "a generator of the CPU": lambda: torch.rand(3, device=DEVICE, generator=torch.Generator()),
    "numpy": lambda: on_device(3).numpy(),
    "an index on the CPU": lambda: on_device(3)[torch.tensor([True, False, True])],
    "a number of no dimension": lambda: on_device(3) * torch.tensor(2.0),
    "a copy": lambda: on_device(3).copy_(torch.zeros(3)),
}


def is_refused(work: Callable[[], Any]) -> bool:
    try:
        work()
    except (RuntimeError, TypeError):
        return True
    return False


def main() -> None:
    global DEVICE
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="*")
    parser.add_argument("--device", default=NAME)
    options = parser.parse_args()
    DEVICE = options.device
    if DEVICE == NAME:
        register()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wrong, called = dict[str, str](), set[str]()
    for name in options.jobs or JOBS:
        try:
            wrong[name] = difference(JOBS[name], called)
        except Exception:
            wrong[name] = traceback.format_exc()
    with on_the_device():
        refused = {name: is_refused(work) for name, work in MIXED.items()}
    print(json.dumps({"wrong": wrong, "called": sorted(called), "refused": refused}))


if __name__ == "__main__":
    main()

"""Walk through a model site by site, over a whole text at each: what a site sees may depend on changes made
at the sites before it.

    with SiteWalk(model, forward) as walk:
        for site in walk.order(first_batch):
            for number, batch in enumerate(batches):
                z, y, _ = walk.see(site, number, batch)   # the inputs and outputs of its W_O
            ...                                           # change W_O
            walk.leave(site)

A pass ends where the site has been reached, and begins after the last layer that is behind: the output of
that layer lies in a temporary folder. So a layer runs about once for each of its sites and batches, and
memory does not grow with the text. Where something else reads what a layer gives (LLaVA the last layer but
one of its images, Qwen3-VL and segmenters several), each gives its own output; where that is not enough, as
layers hand on more than they give (Gemma 3n its keys), all of them run in every pass. The last linear layer
of a feed-forward layer stands in the place of W_O. Where a pass runs a layer several times, one after the
other (ALBERT), a site sees all of its calls, as if each sentence were several.
"""

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from .attach_modes import check_ungated
from .called import called
from .evaluation_mode import evaluation_mode, same_noise
from .headmap import KINDS, HeadSite
from .on_device import on_device
from .rules import rule_of
from .site_rule import SiteRule, projection
from .sites import device_of, find_sites

Forward = Callable[[Any, Any], Any]  # (model, batch) -> anything: one forward pass
# (model, site, batch) -> (B, L) bool: query positions that are not padding
QueryPositions = Callable[[Any, HeadSite, Any], Tensor | None]
Glimpse = tuple[HeadSite, torch.Size, Tensor]  # a site, and the shape and some numbers of its inputs
GLIMPSED = 4096  # numbers, about
FEW_LAYERS = 12
SKIPPED = "skipped"  # the attribute of a layer that says so (depth.py)
_NUMBERED_MODULE = re.compile(r"(?:.*?\.)?\d+(?=\.)")  # the path of the outermost numbered module


class Reached(Exception):
    """The pass has come to where it should end."""


@dataclass(frozen=True)
class Mixer:
    """How an attention mixes the inputs x of its `values`, the linear layer W_V.

    mix (x (B, S, I), *arguments of the attention's forward): (B, L, H, I), the inputs by each head's
    attention weights."""

    values: nn.Linear
    mix: Callable[..., Tensor]


@dataclass(frozen=True)
class Sublayer:
    """A part f of a layer that adds y = f(x) to the residual stream x; a norm may stand before f or after the
    sum.

    site: of the model, f. stream: the module whose first input is x. mixer: of an attention."""

    site: HeadSite
    stream: nn.Module
    mixer: Mixer | None = None


class SiteWalk:
    """One walk through one model in evaluation mode, over its sites of some kinds. fixed: no W_O will change.
    sublayers: those whose residual stream is known. mixed: W_V of the sublayers with a mixer will change too.
    Raises ValueError at a model with gates, or one that is compiled."""

    def __init__(
        self,
        model: nn.Module,
        forward: Forward,
        *,
        kinds: Iterable[str] = KINDS,
        fixed: bool = False,
        sublayers: Iterable[Sublayer] = (),
        mixed: bool = False,
    ):
        check_eager(model)
        self.model, self.forward, self.fixed = model, forward, fixed
        self.sites = open_sites(model, kinds)
        self.outs = {site: projection(module, rule_of(module).out) for site, module in self.sites.items()}
        self.streams = {each.site: each.stream for each in sublayers}
        self.mixers = {each.site: each.mixer for each in sublayers if mixed and each.mixer is not None}
        self.modules = dict(model.named_modules())
        paths = {module: path for path, module in self.modules.items()}
        self.paths = {site: paths[module] for site, module in self.sites.items()}
        matches = {site: _NUMBERED_MODULE.match(path) for site, path in self.paths.items()}
        self.layers = {
            site: match[0] for site, match in matches.items() if match
        }  # site -> path of its layer
        self.calls = dict.fromkeys(self.sites, 1)  # of W_O in a pass
        self.behind: set[HeadSite] = set()
        self.loaded: dict[str, Any] = {}
        self.written: dict[str, None] = {}  # layers whose output this round of passes has written
        self.number = 0  # of the batch
        self.replaced: set[nn.Module] = set()  # layers whose `forward` reads their output
        # layer -> what the file is called that holds its output; None where all layers run in every pass
        self.kept_as: Callable[[str], str] | None = stack_of
        self.stack = ExitStack()

    def __enter__(self) -> "SiteWalk":
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="headgates-")))
        self.stack.enter_context(called(self.model))
        self.stack.enter_context(evaluation_mode(self.model))
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def order(self, batch: Any) -> list[HeadSite]:
        """The sites as one forward pass reaches them. Raises ValueError at one whose W_O is not called, or
        called again after another layer has run."""
        z, outputs = list[Glimpse](), dict[str, Any]()
        handles = [
            self.modules[path].register_forward_hook(
                lambda *given, path=path: outputs.update({path: given[-1]})
            )
            for path in dict.fromkeys(self.layers.values())
        ]
        self.pass_that_sees(batch, z, handles)
        seen = [site for site, *_ in z]
        self.calls = {site: seen.count(site) for site in self.sites}
        layers = [layer for layer, _ in groupby(self.layers.get(site, site.name) for site in seen)]
        for site, times in self.calls.items():
            if times == 0 or layers.count(self.layers.get(site, site.name)) > 1:
                name = type(self.sites[site]).__name__
                raise ValueError(
                    f"a forward pass calls the output projection of {site.name} {times} times; expected "
                    f"once, or again before other layers. Statistics of the heads of {name} cannot be taken"
                    + (": no batch comes to it, or it reads out_proj.weight without that call" * (times == 0))
                )
        if not all(hasattr(self.modules[path], SKIPPED) for path in outputs):  # of ours the next layer reads
            self.kept_as = next(
                (each for each in (stack_of, its_own) if self.agrees(each, batch, z, outputs)), None
            )
        return [*dict.fromkeys(seen)]

    def pass_that_sees(self, batch: Any, z: list[Glimpse], handles: Sequence[Any] = ()) -> None:
        """A whole pass that adds a glimpse of the inputs of each W_O to z."""
        of_sites = [
            out.register_forward_hook(lambda _, inputs, __, site=site: z.append(glimpse(site, inputs[0])))
            for site, out in self.outs.items()
        ]
        one_pass(self.model, batch, self.forward, [*handles, *of_sites])

    def agrees(
        self,
        kept_as: Callable[[str], str],
        batch: Any,
        z: Sequence[Glimpse],
        outputs: Mapping[str, Any],
    ) -> bool:
        """Whether what stands behind the first layers of a stack sees what it saw where they give what is
        kept of them; of a deep stack for some numbers of layers. outputs: of each layer in a whole pass."""
        stacks: dict[str, list[str]] = {}
        for path in outputs:
            stacks.setdefault(stack_of(path), []).append(path)
        for paths in stacks.values():
            depths: Iterable[int] = range(1, len(paths) + 1)
            if len(paths) > FEW_LAYERS:
                depths = sorted({*(len(paths) * n // 4 for n in (1, 2, 3)), len(paths) - 1, len(paths)})
            for behind in (paths[:depth] for depth in depths):
                inside = tuple(f"{path}." for path in behind)  # a layer may be a site itself
                expected = [each for each in z if not f"{self.paths[each[0]]}.".startswith(inside)]
                if not behind or not expected:
                    continue  # nothing is seen behind them
                kept = {kept_as(path): outputs[path] for path in behind}
                found = list[Glimpse]()
                with ExitStack() as after:
                    for path in behind:
                        give = partial(instead, kept[kept_as(path)])
                        replace_forward(self.modules[path], give, after)
                    try:
                        self.pass_that_sees(batch, found)
                    except Exception:  # of whatever kind: a layer gives less than others need
                        return False
                if not alike(found, expected):
                    return False
        return True

    def see(self, site: HeadSite, number: int, batch: Any) -> tuple[Tensor, Any, Tensor | None]:
        """The inputs (B, L, H * K) and outputs (B, L, D) of W_O at the site for batch `number`, and the
        residual stream (B, L, D) to which the outputs are added, where it is known; first axes as the model
        has them. In place of the inputs, where W_V will change, what the heads take in (B, L, H, I).

        All sites before it in the pass must have been left. Unless the model is fixed there are no outputs,
        as they are about to change."""
        self.number, self.loaded = number, {}
        found: dict[str, Any] = {}
        calls: list[tuple[Tensor, Tensor | None]] = []

        def take(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor | None = None) -> None:
            calls.append((inputs[0].detach(), output))
            if len(calls) == self.calls[site]:
                raise Reached

        out = self.outs[site]
        # an output that is about to change is not made
        handles = [(out.register_forward_hook if self.fixed else out.register_forward_pre_hook)(take)]

        def before(module: nn.Module, hook: Callable[..., None], **options: bool) -> None:
            handles.append(module.register_forward_pre_hook(hook, **options))

        if site in self.streams:
            before(self.streams[site], lambda _, inputs: found.update(x=inputs[0].detach()))
        mixer = self.mixers.get(site)
        if mixer is not None:
            before(mixer.values, lambda _, inputs: found.update(inputs=inputs[0].detach()))
            before(self.sites[site], lambda _, *given: found.update(given=given), with_kwargs=True)
        for path in self.finished_layers() if self.kept_as else ():
            if (layer := self.modules[path]) not in self.replaced:
                handles.append(
                    layer.register_forward_hook(lambda *given, path=path: self.write(path, given[-1]))
                )
        one_pass(self.model, batch, self.forward, handles, seed=self.number)
        axis = rule_of(self.sites[site]).batch_axis if calls[0][0].dim() == 3 else 0
        z = in_one([z for z, _ in calls], axis)
        y = None if calls[0][1] is None else in_one([cast(Tensor, y) for _, y in calls], axis)
        if mixer is not None:
            with torch.no_grad():
                z = mixer.mix(found["inputs"], *found["given"][0], **found["given"][1])
        return z, y, found.get("x")

    def leave(self, site: HeadSite) -> None:
        """The site's W_O is as it stays; the next pass may start behind it."""
        self.behind.add(site)
        for path in self.written:
            self.replaced.add(module := self.modules[path])
            replace_forward(module, lambda *_, path=path, **__: self.read(path), self.stack)
        self.written = {}

    @property
    def done_with(self) -> set[HeadSite]:
        """The sites whose layers no pass runs any more."""
        return {site for site, path in self.layers.items() if self.modules[path] in self.replaced}

    # ---------------------------------------------------------------- the folder

    def finished_layers(self) -> list[str]:
        """The layers all of whose sites are behind, in the order of the pass."""
        here = [path for site, path in self.layers.items() if site not in self.behind]
        return [path for path in dict.fromkeys(self.layers.values()) if path not in here]

    def file(self, name: str) -> Path:
        return self.folder / f"{self.number}.{name}.pt"

    def write(self, path: str, output: Any) -> None:
        """Keep a layer's output; where the next layer alone reads it, in place of that of the layer before
        it, which nothing needs now."""
        assert self.kept_as is not None
        torch.save(output, self.file(self.kept_as(path)))
        self.written[path] = None

    def read(self, path: str) -> Any:
        """What is kept of a layer that is behind: where nobody else reads it, the output of the last one of
        its stack that is."""
        assert self.kept_as is not None
        if (name := self.kept_as(path)) not in self.loaded:
            self.loaded[name] = torch.load(self.file(name), weights_only=False)
        return self.loaded[name]


def instead(output: Any, *_: Any, **__: Any) -> Any:
    """A layer's output in place of running it."""
    return output


def glimpse(site: HeadSite, inputs: Tensor) -> Glimpse:
    """Some of the inputs of a W_O: all of a text's would fill the memory."""
    few = inputs.detach().flatten()[:: max(1, inputs.numel() // GLIMPSED)]
    return site, inputs.shape, few.float().clone()


def alike(found: Sequence[Glimpse], expected: Sequence[Glimpse]) -> bool:
    """Whether inputs differ by no more than rounding."""
    if [each[:2] for each in found] != [each[:2] for each in expected]:
        return False
    pairs = [(one, other) for (*_, one), (*_, other) in zip(found, expected, strict=True) if len(other) > 1]
    return all(
        torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(other.nan_to_num().std()), equal_nan=True)
        for one, other in pairs
    )


def replace_forward(module: Any, forward: Callable[..., Any], until: ExitStack) -> None:
    """Until the stack closes the module gives what this function does."""
    if "forward" in vars(module):
        until.callback(setattr, module, "forward", module.forward)
    until.callback(delattr, module, "forward")
    module.forward = forward


def check_eager(model: nn.Module) -> None:
    """Raises ValueError at a model that torch.compile runs, whose modules are not seen as they are called."""
    for module in model.modules():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            name = type(getattr(module, "_orig_mod", module)).__name__
            raise ValueError(
                f"the {name} is compiled, and its parts are not seen as they run; compile it afterwards"
            )


def open_sites(model: nn.Module, kinds: Iterable[str]) -> dict[HeadSite, nn.Module]:
    """The sites of these kinds that have heads left and are in no skipped layer. Raises ValueError at a model
    with gates."""
    check_ungated(model)
    passed = {part for layer in skipped_layers(model) for part in layer.modules()}
    sites = find_sites(model, kinds)
    return {site: module for site, module in sites.items() if site.heads and module not in passed}


def skipped_layers(model: nn.Module) -> list[nn.Module]:
    """The layers that pass the residual stream on unchanged for now."""
    return [layer for layer in model.modules() if getattr(layer, SKIPPED, False)]


def one_pass(model: nn.Module, batch: Any, forward: Forward, handles: Sequence[Any], seed: int = 0) -> None:
    """One forward pass without gradients, to its end or until it is `Reached`; then the hooks are gone. seed:
    of what the model draws at random."""
    try:
        with torch.no_grad(), same_noise(model, seed):
            forward(model, on_device(batch, device_of(model)))
    except Reached:
        pass
    finally:
        for handle in handles:
            handle.remove()


def in_one(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """The tensors of all calls, sentence after sentence. Raises ValueError where they differ in positions."""
    if len({(*each.shape[:axis], *each.shape[axis + 1 :]) for each in tensors}) > 1:
        shapes = " and ".join(str(tuple(each.shape)) for each in tensors)
        raise ValueError(
            f"a pass calls one output projection with inputs of the shapes {shapes}: statistics of its heads "
            "cannot be taken"
        )
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), axis)


def its_own(layer: str) -> str:
    """Where every layer has a file."""
    return layer


def stack_of(layer: str) -> str:
    """The path of the list that a layer stands in."""
    return layer.rpartition(".")[0] or "model"


def rows_where(tensor: Tensor, rule: SiteRule, where: Tensor | None) -> Tensor:
    """(N, width): the positions of tensor (B, L, width), its sentences one after the other in (B * L, width),
    or of (L, B, width) as the attention's rule says, that `where` (B, L) names."""
    if tensor.dim() == 3 and rule.batch_axis == 1:
        tensor = tensor.transpose(0, 1)
    if where is None:
        return tensor.flatten(0, -2)
    if tensor.dim() == 2 and where.numel() == len(tensor):
        where = where.flatten()
    if where.dim() == 2 and tensor.dim() == 3 and len(where) and len(tensor) % len(where) == 0:
        where = where.repeat(len(tensor) // len(where), 1)  # of all calls of one layer
    if where.shape != tensor.shape[:-1]:
        raise ValueError(
            f"positions gave a mask of shape {tuple(where.shape)}; the outputs are of "
            f"{tuple(tensor.shape[:-1])} positions"
        )
    return tensor[where.to(tensor.device)]

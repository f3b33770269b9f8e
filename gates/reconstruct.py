"""Reconstruction after closing: the weights that are left at each site are refitted, without training, to
give what the site gave before. Neurons of a feed-forward layer are heads of width 1.

    reconstruct(model, closed, batches, forward)  # in place: W_O and its bias refitted by ridge regression,
                                                  # closed heads' columns zero
    remove(model, closed)                         # then the heads go, and the outputs stay

The sites go in the order of the forward pass. At each, X are the outputs of the heads that stay, in the model
as it is now (earlier sites closed and refitted), with a column of ones, and Y is the attention's output in
the unpruned model at the same positions (gates/gram.py). Where no head is left, the bias becomes the mean of
Y. The cheaper form is `fold_mean`, whose bias takes in what the closed heads add on average.

With `sublayers`, of a model whose residual stream x is known, Y is what brings the stream to where the
unpruned model has it: y_unpruned + x_unpruned - x. So a site makes up for what those before it could not, and
the last layers of the feed-forward parts do too. Layers that are skipped meanwhile are made up for as well: a
sub-layer right before skipped layers aims at the stream after them. With `values` W_V changes with W_O, from
what each head that stays takes in (gates/value_fit.py). Letters: B sentences, L query positions, H heads, K
head width, D model width.
"""

import copy
import itertools
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .gram import Gram, Ranks, choose_ridge, ridge_fit
from .headmap import HeadMap, HeadSite
from .outputs import Output, closing_outputs, inputs_of, outputs_of
from .site_walk import SKIPPED, Forward, Mixer, QueryPositions, SiteWalk, Sublayer, rows_where, skipped_layers
from .value_fit import choose_value_ridge, value_error, value_fit

RIDGE_EVERY = 5  # one sentence of so many is held out, for the choice of the ridge
NO_TEXT = (
    "the calibration text has no positions; give at least one sentence, better a thousand (and batches that "
    "can be read again)"
)


Lent = tuple[nn.Module, str, nn.Parameter]  # a module, its attribute, and the parameter that was there


@dataclass(frozen=True)
class Refit:
    """What a refit did at one site. ridge: relative to the mean diagonal of X^T X; error: the share of the
    squares of Y that is left unexplained, over all positions."""

    site: HeadSite
    positions: int
    ridge: float
    error: float


def reconstruct(
    model: nn.Module,
    closed: HeadMap,
    batches: Iterable[Any],
    forward: Forward,
    *,
    positions: QueryPositions | None = None,
    ridge: float | None = None,
    sublayers: Callable[[nn.Module], Sequence[Sublayer]] = lambda _: (),
    values: bool = False,
    ranks: Ranks | None = None,
) -> list[Refit]:
    """Refit W_O and its bias after the heads where `closed` is True are closed, in place; what was done at
    each site, in their order.

    batches: the calibration text, read once a site. forward (model, batch) runs the model; it is stopped at
    the site that it is run for. positions (model, site, batch): (B, L) bool, False at padding, which counts
    everywhere unless given. ridge: chosen at each site on every fifth sentence unless given. sublayers
    (model): those whose residual stream is aimed at. values: their attentions have W_V refitted too. ranks:
    of which this process is one; a batch then has a length, its sentences. A projection without bias gets
    none. Layers that are skipped (depth.py) are part of the unpruned model. Raises ValueError at a
    model with gates, a map that does not fit it, text without positions, or an attention whose output
    projection is not called; the model is then as it was. Warns where there are fewer positions than columns.
    With nothing closed and nothing skipped nothing changes."""
    if isinstance(batches, Iterator):
        raise ValueError(
            f"expected a list of batches or a loader, which can be read again, got a {type(batches).__name__}"
        )
    if ridge is not None and ridge < 0:
        raise ValueError(f"expected a ridge of at least 0, got {ridge}")
    parts, done = sublayers(model), list[Refit]()
    lent = dict[HeadSite, list[Lent]]()  # what the unpruned model has copies of for now
    outputs = outputs_of(model, closed, parts, values=values)
    if all(output.keep.all() for output in outputs.values()) and not skipped_layers(model):
        return []
    unpruned, kinds = unpruned_copy(model, ()), {site.kind for site in outputs}
    with (
        SiteWalk(model, forward, kinds=kinds, sublayers=parts, mixed=values) as walk,
        SiteWalk(unpruned, forward, kinds=kinds, fixed=True, sublayers=sublayers(unpruned)) as unpruned_walk,
        put_back_on_failure(walk.folder) as keep,
    ):
        first = next(iter(batches), None)
        if first is None:
            raise ValueError(NO_TEXT)
        order, changed = unpruned_walk.order(first), False
        walk.calls = {site: unpruned_walk.calls[site] for site in walk.sites}
        walk.kept_as = unpruned_walk.kept_as
        aims = aims_of(order, outputs, known=bool(parts))
        for site in order:
            changed |= site not in outputs or not outputs[site].keep.all()
            if site in outputs and (changed or aims[site] != site):
                output = outputs[site]
                fit, held_out = (Gram.zeros(*output.sizes, output.weight.device) for _ in range(2))
                sentences = 0
                for number, batch in enumerate(batches):
                    if ranks is not None and number % ranks.world() != ranks.rank():
                        sentences += len(batch)
                        continue
                    z, _, x_now = walk.see(site, number, batch)
                    _, y, x_then = unpruned_walk.see(aims[site], number, batch)
                    if x_now is not None and x_then is not None:
                        y = y.double() + (x_then.double() - x_now.double())
                    z = z.flatten(2) if output.mixer is not None else z
                    axis = output.rule.batch_axis if z.dim() == 3 else 0
                    held, rows = torch.zeros_like(z[..., :1], dtype=torch.bool), z.shape[axis]
                    own = rows // walk.calls[site]  # of one call
                    numbers = torch.arange(rows, device=z.device) % own + sentences
                    held.transpose(0, axis)[numbers % RIDGE_EVERY == RIDGE_EVERY - 1] = True
                    sentences += own
                    where = None if positions is None else positions(model, site, batch)
                    x, y, held = (rows_where(each, output.rule, where) for each in (z, y, held))
                    x = torch.cat([x[:, output.kept_inputs].double(), x.new_ones(len(x), 1).double()], 1)
                    fit.add(x[~held[:, 0]], y[~held[:, 0]])
                    held_out.add(x[held[:, 0]], y[held[:, 0]])
                if ranks is not None:
                    fit, held_out = fit.summed(ranks), held_out.summed(ranks)
                keep(output.parameters)
                lent[site] = own_copies(model, unpruned, output.parameters)
                done.append(refit_site(output, fit, held_out, ridge))
            walk.leave(site)
            unpruned_walk.leave(site)
            for behind in lent.keys() & unpruned_walk.done_with:
                for owner, name, shared in lent.pop(behind):
                    setattr(owner, name, shared)
    return done


@contextmanager
def put_back_on_failure(folder: Path) -> Iterator[Callable[[Iterable[nn.Parameter]], None]]:
    """Yields a function to call with parameters before they change. Where the context is left by an error,
    they get their old values back, which are kept in the folder, as they may be half of a model."""
    kept = list[tuple[list[nn.Parameter], Path]]()

    def keep(parameters: Iterable[nn.Parameter]) -> None:
        own, path = list(parameters), folder / f"before.{len(kept)}.pt"
        torch.save([each.detach() for each in own], path)
        kept.append((own, path))

    try:
        yield keep
    except BaseException:
        for own, path in reversed(kept):
            for parameter, value in zip(own, torch.load(path), strict=True):
                parameter.data.copy_(value)
        raise


def aims_of(order: Iterable[HeadSite], here: Container[HeadSite], *, known: bool) -> dict[HeadSite, HeadSite]:
    """For each site, the one of the unpruned model after which the stream should be the same: itself or,
    where the stream is `known` and skipped layers follow in the stack, the last site of these. order: of the
    unpruned model, as a pass reaches them. here: the sites in no skipped layer."""
    aims: dict[HeadSite, HeadSite] = {}
    last: HeadSite | None = None
    for site in order:
        if site in here:
            last = site
            aims[site] = site
        elif known and last is not None and last.stack == site.stack:
            aims[last] = site
    return aims


def refit_site(output: Output, fit: Gram, held_out: Gram, ridge: float | None) -> Refit:
    """Refit one site by the sums over the fitted and the held-out sentences, X with a last column of ones,
    and close its heads there."""
    count, columns = fit.positions + held_out.positions, len(fit.xx)
    if not count:
        raise ValueError(NO_TEXT)
    if count < columns:
        warnings.warn(
            f"{output.site.name}: {count} positions of calibration text for {columns} columns; the ridge is "
            "larger for it, and more text would fit better",
            stacklevel=3,
        )
    if output.mixer is not None and output.keep.any():
        chosen, error = refit_values(output, output.mixer, fit, held_out, ridge)
    else:
        chosen, error = refit_out(output, fit, held_out, ridge)
    output.close()
    return Refit(output.site, count, chosen, error)


def refit_out(output: Output, fit: Gram, held_out: Gram, ridge: float | None) -> tuple[float, float]:
    """Refit W_O and its bias, in place; the ridge and the error."""
    kept, old = output.kept, output.old()
    if output.bias is None:
        fit, held_out, old = fit.without_ones(), held_out.without_ones(), old[:-1]
    if not len(old):
        return 0.0, 1.0
    chosen = choose_ridge(fit, held_out, old) if ridge is None else ridge
    if not kept.any():
        chosen = 0.0  # the mean itself
    fit += held_out
    new = ridge_fit(fit, old, chosen)
    output.weight[:, kept] = new[: int(kept.sum())].T.to(output.out.weight)
    if output.bias is not None:
        output.bias.copy_(new[-1])
    return chosen, fit.error(new)


def refit_values(
    output: Output, mixer: Mixer, fit: Gram, held_out: Gram, ridge: float | None
) -> tuple[float, float]:
    """Refit W_V, W_O and its bias, in place; the ridge and the error. b_V stays: it is in every sum of the
    heads' weights, which are 1. A model whose sublayers are known has both biases or neither."""
    kept = output.keep.to(output.weight.device)
    heads, values, bias = len(kept), mixer.values, output.bias
    V = values.weight.detach().unflatten(0, (heads, -1))
    O = output.weight.unflatten(1, (heads, -1)).transpose(0, 1)
    if bias is None:  # and none is fitted
        fit, held_out = fit.with_ones_of_zeros(), held_out.with_ones_of_zeros()
        old = V[kept], O[kept], O.new_zeros(O.shape[1]).double()
    else:
        constant = values.bias.detach().unflatten(0, (heads, -1))[kept, :, None].double()  # (S, K, 1)
        old = V[kept], O[kept], bias.double() + (O[kept].double() @ constant).sum((0, 2))
    chosen = choose_value_ridge(fit, held_out, *old) if ridge is None else ridge
    fit += held_out
    new = value_fit(fit, *old, chosen)
    V[kept], O[kept] = new[0].to(V), new[1].to(O)
    if bias is not None:
        bias.copy_(new[2] - (O[kept].double() @ constant).sum((0, 2)))
    return chosen, value_error(fit, *new)


def unpruned_copy(model: nn.Module, changing: Iterable[nn.Parameter]) -> nn.Module:
    """The model as it is now, with no layer skipped; all but the `changing` parameters is shared with it."""
    own = {id(parameter) for parameter in changing}
    tensors = itertools.chain(model.parameters(), model.buffers())
    copied = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors if id(tensor) not in own})
    for layer in skipped_layers(copied):
        setattr(layer, SKIPPED, False)
    return copied


def own_copies(model: nn.Module, copied: nn.Module, changing: Iterable[nn.Parameter]) -> list[Lent]:
    """Give a copy of the model its own values of parameters that are about to change; what it had."""
    ids, found = {id(parameter) for parameter in changing}, list[Lent]()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in ids:
                owner = copied.get_submodule(path)
                found.append((owner, name, parameter))
                setattr(owner, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
    return found


# ---------------------------------------------------------------- without a refit


def fold_mean(
    model: nn.Module,
    closed: HeadMap,
    batches: Iterable[Any],
    forward: Forward,
    *,
    positions: QueryPositions | None = None,
    ranks: Ranks | None = None,
) -> None:
    """Zero the columns of the closed heads, and add what they give on average to the bias, in place: b +=
    W_closed E[z_closed].

    The mean is over the positions of the text in the model as it was. Arguments and errors are those of
    `reconstruct`; also raises ValueError at a projection without a bias."""
    outputs = closing_outputs(model, closed)
    for site, output in outputs.items():
        if output.bias is None:
            raise ValueError(
                f"the output projection of {site.name} has no bias to take in the mean; refit it instead"
            )
    # (H * K + 1,): the sum of z over the positions, and their number
    sums = {site: each.old().new_zeros(each.weight.shape[1] + 1) for site, each in outputs.items()}
    mine = batches if ranks is None else itertools.islice(batches, ranks.rank(), None, ranks.world())
    for site, rows in inputs_of(outputs, model, mine, forward, positions):
        sums[site][:-1] += rows.double().sum(0)
        sums[site][-1] += len(rows)
    if ranks is not None:
        sums = {site: ranks.all_sum(total) for site, total in sums.items()}
    if not all(total[-1] for total in sums.values()):
        raise ValueError(NO_TEXT)
    for site, output in outputs.items():
        mean = sums[site][:-1] / sums[site][-1] * ~output.kept
        assert output.bias is not None
        output.bias.add_((output.weight.double() @ mean).to(output.bias))
        output.close()


def zero_heads(model: nn.Module, closed: HeadMap) -> None:
    """Zero the columns of W_O of the heads where `closed` is True, in place. Raises as `reconstruct`
    does."""
    for output in outputs_of(model, closed).values():
        output.close()

"""Repair after closing: what is left at each site learns to give what the whole site gave, without training.

    reconstruct(model, closed, batches, forward)   # in place: W_O and its bias refitted by ridge regression,
    closed heads' columns zero
    remove(model, closed)                     # then the heads go, and the outputs stay

The sites go in the order of the forward pass. At each, X are the outputs of the heads that stay, in the model
as it is now (earlier sites closed and refitted), with a column of ones, and Y is the attention's output in
the dense model at the same positions (gates/gram.py). Where no head is left, the bias becomes the mean of Y.
The cheaper forms: `rescale`, one factor for each head that stays, and `fold_mean`, whose bias takes in what
the closed heads add on average.

With `sublayers`, of a model whose residual stream x is known, Y is what brings the stream to where the dense
model has it: y_dense + x_dense - x. So a site makes up for what those before it could not, and the last
layers of the feed-forward parts do too. With `values` W_V changes with W_O, from what each head that stays
takes in (gates/value_fit.py). Letters: B sentences, L query positions, H heads, K head width, D model width.
"""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .gram import Gram, Ranks, choose_ridge, head_factors, ridge_fit
from .headmap import HeadMap, HeadSite
from .outputs import Output, outputs_of
from .rules import rule_of
from .site_rule import SiteRule, columns_of, plain_projection
from .site_walk import Forward, Mixer, Positions, SiteWalk, Sublayer, open_sites, rows_of, run
from .value_fit import choose_value_ridge, products, value_fit

EVERY = 5  # one sentence of so many is held out, for the choice of the ridge


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
    dense: nn.Module | None = None,
    positions: Positions | None = None,
    ridge: float | None = None,
    sublayers: Callable[[nn.Module], Sequence[Sublayer]] = lambda _: (),
    values: bool = False,
    ranks: Ranks | None = None,
) -> list[Refit]:
    """Refit W_O and its bias after the heads where `closed` is True are closed, in place; what was done at
    each site, in their order.

    batches: the calibration text, read once a site. forward (model, batch) runs the model; it is stopped at
    the site that it is run for. dense: the model whose outputs are aimed at, a copy of `model` unless given.
    positions (model, site, batch): (B, L) bool, False at padding, which counts everywhere unless given.
    ridge: chosen at each site on every fifth sentence unless given. sublayers (model): those whose residual
    stream is aimed at. values: their attentions have W_V refitted too. ranks: of which this process is one; a
    batch then has a length, its sentences. A projection without bias gets none. Raises ValueError at a model
    with gates, a map that does not fit it, text without positions, or an attention whose output projection is
    not called; warns
    where there are fewer positions
    than columns. With nothing
    closed nothing changes."""
    if ridge is not None and ridge < 0:
        raise ValueError(f"expected a ridge of at least 0, got {ridge}")

    def refit(output: Output, fit: Gram, held_out: Gram) -> tuple[float, float]:
        kept, gram = output.kept, fit.plus(held_out)
        if output.mixer is not None and kept.any():
            return refit_values(output, output.mixer, fit, held_out, ridge)
        old = output.old(kept)
        if not len(old):
            return 0.0, 1.0
        chosen = ridge if ridge is not None else choose_ridge(fit, held_out, old)
        if not kept.any():
            chosen = 0.0  # the mean itself
        new = ridge_fit(gram, old, chosen)
        output.weight[:, kept] = new[: int(kept.sum())].T.to(output.out.weight)
        if output.bias is not None:
            output.bias.copy_(new[-1])
        return chosen, gram.error(new)

    return walk_sites(
        model,
        closed,
        batches,
        forward,
        refit,
        dense=dense,
        positions=positions,
        with_bias=True,
        sublayers=sublayers,
        values=values,
        ranks=ranks,
    )


def refit_values(
    output: Output, mixer: Mixer, fit: Gram, held_out: Gram, ridge: float | None
) -> tuple[float, float]:
    """Refit W_V, W_O and its bias, in place; the ridge and the error. b_V stays: it is in every sum of the
    heads' weights, which are 1."""
    kept = output.keep.to(output.weight.device)
    heads = len(kept)
    V, O = (
        mixer.values.weight.detach().unflatten(0, (heads, -1)),
        output.weight.unflatten(1, (heads, -1)).transpose(0, 1),
    )
    constant = mixer.values.bias.detach().unflatten(0, (heads, -1))[kept, :, None].double()  # (S, K, 1)
    bias = output.bias.double() + (O[kept].double() @ constant).sum((0, 2))  # type: ignore[union-attr]
    chosen = ridge if ridge is not None else choose_value_ridge(fit, held_out, V[kept], O[kept], bias)
    new = value_fit(fit.plus(held_out), V[kept], O[kept], bias, chosen)
    V[kept], O[kept] = new[0].to(V), new[1].to(O)
    output.bias.copy_(new[2] - (O[kept].double() @ constant).sum((0, 2)))  # type: ignore[union-attr]
    return chosen, fit.plus(held_out).error(products(*new))


def rescale(
    model: nn.Module,
    closed: HeadMap,
    batches: Iterable[Any],
    forward: Forward,
    *,
    dense: nn.Module | None = None,
    positions: Positions | None = None,
    ranks: Ranks | None = None,
) -> list[Refit]:
    """Multiply the columns of each head that stays by one factor, by least squares, and zero those of the
    closed heads; in place.

    Kwon et al. 2022 (arXiv:2204.09656), section 3.3. Arguments, order, errors: as `reconstruct`."""

    def scale(output: Output, fit: Gram, held_out: Gram) -> tuple[float, float]:
        kept, gram = output.kept, fit.plus(held_out)
        heads = int(output.keep.sum())
        if not heads:
            return 0.0, 1.0
        weight = output.weight[:, kept]
        bias = weight.new_zeros(len(weight)) if output.bias is None else output.bias
        factors = head_factors(gram, weight, bias, heads).repeat_interleave(weight.shape[1] // heads)
        output.weight[:, kept] = (weight.double() * factors).to(weight)
        return 0.0, gram.error(torch.cat([output.weight[:, kept].double(), bias.double()[:, None]], 1).T)

    return walk_sites(
        model, closed, batches, forward, scale, dense=dense, positions=positions, with_bias=False, ranks=ranks
    )


def walk_sites(
    model: nn.Module,
    closed: HeadMap,
    batches: Iterable[Any],
    forward: Forward,
    solve: Callable[[Output, Gram, Gram], tuple[float, float]],
    *,
    dense: nn.Module | None,
    positions: Positions | None,
    with_bias: bool,
    sublayers: Callable[[nn.Module], Sequence[Sublayer]] = lambda _: (),
    values: bool = False,
    ranks: Ranks | None = None,
) -> list[Refit]:
    """Close the heads site by site; `solve` gets the Gram matrices of the fitted and of the held-out
    sentences, changes W_O in place, and returns ridge and error. with_bias: the column of ones follows the
    bias, else it is always there."""
    parts = sublayers(model)
    outputs = outputs_of(model, closed, parts, values=values)
    if not any(not output.keep.all() for output in outputs.values()):
        return []
    dense = dense if dense is not None else dense_copy(model, outputs)
    walks = (
        SiteWalk(model, forward, sublayers=parts, mixed=values),
        SiteWalk(dense, forward, fixed=True, sublayers=sublayers(dense)),
    )
    done: list[Refit] = []
    with walks[0] as walk, walks[1] as dense_walk:
        first = next(iter(batches), None)
        if first is None:
            raise ValueError(NO_TEXT)
        order = walk.order(first)
        if set(dense_walk.sites) != set(order):
            raise ValueError(
                "the dense model has other sites or heads than the model; expected the model as it was "
                "before any was closed"
            )
        first_closed = next(i for i, site in enumerate(order) if not outputs[site].keep.all())
        for site in order[:first_closed]:  # as the dense model's: nothing to refit
            walk.leave(site)
            dense_walk.leave(site)
        for site in order[first_closed:]:
            output = outputs[site]
            kept = output.kept_inputs
            columns = int(kept.sum()) + (not with_bias or output.bias is not None)
            fit, held_out = (Gram(columns, len(output.weight), output.weight.device) for _ in range(2))
            sentences = 0
            for number, batch in enumerate(batches):
                if ranks is not None and number % ranks.world() != ranks.rank():
                    sentences += len(batch)
                    continue
                z, _, x_now = walk.see(site, number, batch)
                z = z.flatten(2) if output.mixer is not None else z
                _, y, x_dense = dense_walk.see(site, number, batch)
                if x_now is not None and x_dense is not None:
                    y = y.double() + (x_dense.double() - x_now.double())
                held = held_out_rows(z, output.rule, sentences)
                sentences += len(held)
                where = None if positions is None else positions(model, site, batch)
                x, y, held = (
                    rows_of(each, output.rule, where) for each in (z, y, held_as(z, held, output.rule))
                )
                x = (
                    output.with_ones(x[:, kept])
                    if with_bias
                    else torch.cat([x[:, kept].double(), x.new_ones(len(x), 1).double()], 1)
                )
                for gram, rows in ((fit, ~held[:, 0]), (held_out, held[:, 0])):
                    gram.add(x[rows], y[rows])
            if ranks is not None:
                fit, held_out = fit.summed(ranks), held_out.summed(ranks)
            count = fit.positions + held_out.positions
            if not count:
                raise ValueError(NO_TEXT)
            if count < columns:
                warnings.warn(
                    f"{site.name}: {count} positions of calibration text for {columns} columns; the ridge "
                    "is larger for it, and more text "
                    "would fit better",
                    stacklevel=3,
                )
            ridge, error = solve(output, fit, held_out)
            output.close()
            done.append(Refit(site, count, ridge, error))
            walk.leave(site)
            dense_walk.leave(site)
    return done


NO_TEXT = (
    "the calibration text has no positions; give at least one sentence, better a thousand (and batches that "
    "can be read again)"
)


def fold_mean(
    model: nn.Module,
    closed: HeadMap,
    batches: Iterable[Any],
    forward: Forward,
    *,
    positions: Positions | None = None,
    ranks: Ranks | None = None,
) -> None:
    """Zero the columns of the closed heads, and add what they give on average to the bias, in place: b +=
    W_closed E[z_closed].

    The mean is over the positions of the text in the model as it was. Arguments and errors are those of
    `reconstruct`; also raises ValueError at a projection without a bias."""
    outputs = {site: output for site, output in outputs_of(model, closed).items() if not output.keep.all()}
    for site, output in outputs.items():
        if output.bias is None:
            raise ValueError(
                f"the output projection of {site.name} has no bias to take in the mean; close its heads "
                "with zero or repair"
            )
    means = (
        head_means(model, batches, forward, list(outputs), positions=positions, ranks=ranks)
        if outputs
        else {}
    )
    for site, output in outputs.items():
        gone = ~output.kept
        output.bias.add_((output.weight[:, gone].double() @ means[site][gone]).to(output.bias))  # type: ignore[union-attr]
        output.close()


def zero_heads(model: nn.Module, closed: HeadMap) -> None:
    """Zero the columns of W_O of the heads where `closed` is True, in place. Raises as `reconstruct`
    does."""
    for output in outputs_of(model, closed).values():
        output.close()


def head_means(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Forward,
    sites: "list[HeadSite]",
    *,
    positions: Positions | None = None,
    ranks: Ranks | None = None,
) -> dict[HeadSite, Tensor]:
    """E[z] (H * K,) of each of the sites, in float64, by one pass over the text. Raises ValueError where it
    has no positions."""
    modules = open_sites(model)
    outs = {site: plain_projection(modules[site], rule_of(modules[site]).out) for site in sites}
    sums = {
        site: out.weight.new_zeros(columns_of(out, rule_of(modules[site])), dtype=torch.float64)
        for site, out in outs.items()
    }
    counts = dict.fromkeys(sites, 0)

    def take(site: HeadSite, batch: Any, z: Tensor) -> None:
        rows = rows_of(
            z.detach(), rule_of(modules[site]), None if positions is None else positions(model, site, batch)
        )
        sums[site] = sums[site] + rows.double().sum(0)
        counts[site] += len(rows)

    for batch in batches if ranks is None else itertools.islice(batches, ranks.rank(), None, ranks.world()):
        see_inputs(model, batch, forward, {site: modules[site] for site in sites}, take)
    if ranks is not None:
        sums = {site: ranks.all_sum(total) for site, total in sums.items()}
        counts = {site: int(ranks.all_sum(torch.tensor(count))) for site, count in counts.items()}
    if not all(counts.values()):
        raise ValueError(NO_TEXT)
    return {site: sums[site] / counts[site] for site in sites}


def see_inputs(
    model: nn.Module,
    batch: Any,
    forward: Forward,
    sites: "dict[HeadSite, nn.Module]",
    take: Callable[[HeadSite, Any, Tensor], None],
) -> None:
    """One forward pass, in which `take` gets each site, the batch, and the inputs of its W_O."""
    handles = []
    for site, module in sites.items():
        out = plain_projection(module, rule_of(module).out)
        handles.append(
            out.register_forward_pre_hook(lambda _, inputs, site=site: take(site, batch, inputs[0]))
        )
    run(model, batch, forward, handles)


def dense_copy(model: nn.Module, outputs: dict[HeadSite, Output]) -> nn.Module:
    """The model as it is now; all but what a refit changes is shared with it."""
    own = {id(parameter) for output in outputs.values() for parameter in output.parameters}
    tensors = itertools.chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors if id(tensor) not in own})


def held_out_rows(z: Tensor, rule: SiteRule, sentences: int) -> Tensor:
    """(B,) bool: every fifth sentence of the text, `sentences` of which came before this batch."""
    axis = rule.batch_axis if z.dim() == 3 else 0
    return (torch.arange(z.shape[axis], device=z.device) + sentences) % EVERY == EVERY - 1


def held_as(z: Tensor, held: Tensor, rule: SiteRule) -> Tensor:
    """The sentences that are held out, as a tensor of the positions of z with one column."""
    shape = (1, -1, 1) if z.dim() == 3 and rule.batch_axis == 1 else (-1,) + (1,) * (z.dim() - 1)
    return held.view(shape).expand(*z.shape[:-1], 1)

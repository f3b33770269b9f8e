"""The ratio rule against a slow way that shares no step with it: the terms of every sum written out as a
matrix (outputs, inputs), by the Jacobian of the step, for one sentence and one generation step at a time."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from headgates.analysis.lrp import relevance
from headgates.analysis.ratio_walk import RatioWalk
from headgates.data.batch import collate
from headgates.models.transformer import Transformer

EPS = 0.5
OTHERS = {"norm": "post", "activation": "gelu", "embedding_norm": True, "output_bias": True}


class Tape:
    """Steps y = f(*xs), in order. f is a sum of terms and a constant, or None where relevance passes
    on."""

    def __init__(self) -> None:
        self.steps: list[tuple[Callable | None, tuple[Tensor, ...], Tensor]] = []

    def __call__(self, f: Callable, *xs: Tensor) -> Tensor:
        self.steps.append((f, xs, f(*xs)))
        return self.steps[-1][2]

    def back(self, end: Callable, x: Tensor) -> dict[int, Tensor]:
        """R of every tensor, by its id, where R of the one number end(x) is 1."""
        last = end(x)
        R = defaultdict(float, {id(last): torch.ones_like(last)})
        for f, xs, y in [(end, (x,), last), *self.steps[::-1]]:
            if id(y) not in R:
                continue
            if f is None:
                R[id(xs[0])] += R[id(y)]
                continue
            terms = [
                each.reshape(y.numel(), -1) * x.flatten()
                for each, x in zip(torch.autograd.functional.jacobian(f, xs), xs, strict=True)
            ]
            total = torch.cat(terms, 1).sum(1) + f(*map(torch.zeros_like, xs)).flatten()
            factor = R[id(y)].flatten() / torch.where(total >= 0, total + EPS, total - EPS)
            for x, each in zip(xs, terms, strict=True):
                R[id(x)] += (factor @ each).view_as(x)
        return R


def slow(model: Transformer, source: Tensor, target: Tensor) -> list[dict[str, Tensor]]:
    """R of every generation step of one sentence: by site (H,), and of "source" and "target" a number."""
    tape, ends, pre = Tape(), {}, model.config.norm == "pre"
    weights: dict[str, Tensor] = {}
    model.decode(*model.encode(source[None], weights), target[None], weights)

    def norm(module: nn.Module, x: Tensor) -> Tensor:
        if isinstance(module, nn.Identity):
            return x
        sigma = (x.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt()
        return tape(lambda x: module.weight * (x - x.mean(-1, keepdim=True)) / sigma + module.bias, x)

    def attention(module: nn.Module, site: str, memory: Tensor | None, h: Tensor) -> Tensor:
        def mix(v: Tensor) -> Tensor:  # (S, H * K) -> (L, H, K)
            return torch.einsum("hls,shk->lhk", weights[site][0], v.unflatten(-1, (module.heads, -1)))

        ends[site] = tape(mix, tape(module.v_proj, h if memory is None else memory))
        return tape(lambda z: module.out_proj(z.flatten(1)), ends[site])

    def feed(module: nn.Module, h: Tensor) -> Tensor:
        y = tape(module.inner, h)
        a = module.activation(y)
        tape.steps.append((None, (y,), a))
        return tape(module.outer, a)

    def stack(name: str, side: str, ids: Tensor, memory: Tensor | None = None) -> Tensor:
        ends[side] = model.embeddings(ids[None], side)[0]
        x = norm(getattr(model, f"{side}_norm"), ends[side])
        for i, layer in enumerate(getattr(model, name).layers):
            own = f"{name}.{i}.{name[:3]}-self"
            inner = {"self": partial(attention, layer.self_attention, own, None)}
            if memory is not None:
                inner["cross"] = partial(attention, layer.cross_attention, f"{name}.{i}.cross", memory)
            for part, f in (inner | {"feed": partial(feed, layer.feed_forward)}).items():
                residual = getattr(layer, f"{part}_residual").norm
                x = tape(torch.add, x, f(norm(residual, x) if pre else x))
                x = x if pre else norm(residual, x)
        return norm(getattr(model, name).norm, x)

    states = stack("decoder", "target", target, stack("encoder", "source", source))
    steps = []
    for t, best in enumerate(model.output(states).argmax(1)):
        R = tape.back(lambda x, t=t, best=best: model.output(x)[t, best][None], states)
        steps.append({end: R[id(x)].sum((0, 2) if x.dim() == 3 else None) for end, x in ends.items()})
    return steps


@torch.no_grad()
@pytest.mark.parametrize("settings", [{}, OTHERS], ids=["pre", "post"])
def test_the_ratio_rule_equals_its_formula_on_terms_written_out(make_model, settings):
    model = make_model(d_model=6, ffn=5, encoder_layers=2, decoder_layers=1, **settings)
    pairs, model = [([7, 5], [18]), ([12], [])], model.double()
    both = [collate([pair], [0], 1) for pair in pairs]
    steps = [step for one in both for step in slow(model, one.source[0], one.target_in[0])]
    found = relevance(model, [collate(pairs, [0, 1], 1)], walk=partial(RatioWalk, eps=EPS))
    assert found.steps == len(steps)
    mean = {name: torch.stack([step[name] for step in steps]).mean(0) for name in steps[0]}
    for site, row in found.signed.items():
        torch.testing.assert_close(row, mean[site.name], rtol=1e-9, atol=1e-12)
    for end in ("source", "target"):
        assert getattr(found.ledger, end) == pytest.approx(float(mean[end]))

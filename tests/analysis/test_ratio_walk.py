"""The ratio rule against a slow way that shares no step with it: the terms of every sum written out as a
matrix (outputs, inputs), by the Jacobian of the step, for one sentence and one generation step at a time."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from headgates.analysis.lrp import relevance
from headgates.analysis.ratio_walk import RatioWalk
from headgates.data.batch import collate
from headgates.gates import remove
from headgates.models.transformer import Transformer
from tests.analysis.test_lrp import UNEVEN, shut

EPS = 0.5
# site -> R_h (H,) of a generation step, and "source" and "target" -> a number
Step = dict[str, Tensor]


OTHERS = {"norm": "post", "activation": "gelu", "embedding_norm": True, "output_bias": True}


class Slow:
    """One sentence forward; `R` then goes back through `ways`, a list of (function of the step, its
    input)."""

    def __init__(self, model: Transformer):
        self.model = model
        self.pre = model.config.norm == "pre"

    def through(self, f: Callable[[Tensor], Tensor], x: Tensor, R: Tensor) -> Tensor:
        """R of f(x) -> R of x, f a sum of terms and a constant."""
        jacobian = torch.autograd.functional.jacobian(f, x).flatten(x.dim() * -1).flatten(0, -2)
        z = jacobian * x.flatten()
        y = z.sum(1) + f(torch.zeros_like(x)).flatten()
        return (R.flatten() / torch.where(y >= 0, y + EPS, y - EPS) @ z).view_as(x)

    def norm(self, module: nn.Module, x: Tensor, R: Tensor) -> Tensor:
        if isinstance(module, nn.Identity):
            return R
        sigma = (x.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt()
        return self.through(
            lambda x: module.weight * (x - x.mean(-1, keepdim=True)) / sigma + module.bias, x, R
        )

    def run(self, source: Tensor, target: Tensor) -> list[Step]:
        """R of every generation step."""
        model = self.model
        weights: dict[str, Tensor] = {}
        memory, bias = model.encode(source[None], weights)
        states = model.decode(memory, bias, target[None], weights)[0]  # (T, D)
        logits = model.output(states)
        steps = []
        for t in range(len(target)):
            best = logits[t].argmax()
            found: dict[str, Tensor] = {}
            R = torch.zeros_like(states)
            R[t] = self.through(
                lambda x, best=best: model.output(x)[best : best + 1], states[t], torch.ones(1).double()
            )
            inputs, ways = self.forward(model.embed(target[None], "target")[0], "decoder", memory[0], weights)
            R = self.norm(model.decoder.norm, inputs, R)
            R_memory = torch.zeros_like(memory[0])
            for way in reversed(ways):
                R, more = way(R, found)
                R_memory = R_memory + more
            found["target"] = self.norm(
                model.target_norm, model.embeddings(target[None], "target")[0], R
            ).sum()
            inputs, ways = self.forward(model.embed(source[None], "source")[0], "encoder", None, weights)
            R = self.norm(model.encoder.norm, inputs, R_memory)
            for way in reversed(ways):
                R, _ = way(R, found)
            found["source"] = self.norm(
                model.source_norm, model.embeddings(source[None], "source")[0], R
            ).sum()
            steps.append(found)
        return steps

    def forward(
        self, x: Tensor, stack: str, memory: Tensor | None, weights: dict[str, Tensor]
    ) -> tuple[Tensor, list[Callable]]:
        ways = []

        def pass_on(residual: nn.Module, inner: Callable) -> None:
            nonlocal x
            x, way = self.sub_layer(residual, x, inner)
            ways.append(way)

        for i, layer in enumerate(getattr(self.model, stack).layers):
            for kind in ["enc-self"] if memory is None else ["dec-self", "cross"]:
                name, site = kind.removeprefix("enc-").removeprefix("dec-"), f"{stack}.{i}.{kind}"
                module, keys = getattr(layer, f"{name}_attention"), memory if kind == "cross" else None
                pass_on(
                    getattr(layer, f"{name}_residual"),
                    partial(self.attention, module, site, keys, weights[site][0]),
                )
            pass_on(layer.feed_residual, partial(self.feed, layer.feed_forward))
        return x, ways

    def sub_layer(self, residual: nn.Module, x: Tensor, inner: Callable) -> tuple[Tensor, Callable]:
        h = residual.norm(x) if self.pre else x
        y, within = inner(h)

        def way(R: Tensor, found: dict[str, Tensor]) -> tuple[Tensor, Tensor | float]:
            if not self.pre:
                R = self.norm(residual.norm, x + y, R)
            both = self.through(lambda pair: pair.sum(0), torch.stack([x, y]), R)
            R_h, R_memory = within(both[1], found)
            if isinstance(R_h, Tensor):
                R_h = self.norm(residual.norm, x, R_h) if self.pre else R_h
            return both[0] + R_h, R_memory

        return x + y if self.pre else residual.norm(x + y), way

    def feed(self, module: nn.Module, h: Tensor) -> tuple[Tensor, Callable]:
        a = module.activation(module.inner(h))

        def within(R: Tensor, found: dict[str, Tensor]) -> tuple[Tensor, float]:
            return self.through(module.inner, h, self.through(module.outer, a, R)), 0.0

        return module.outer(a), within

    def attention(
        self, module: nn.Module, site: str, memory: Tensor | None, weights: Tensor, h: Tensor
    ) -> tuple[Tensor, Callable]:
        if module.heads == 0:
            return module.out_proj.bias.expand_as(h), lambda R, found: (0.0, 0.0)
        keys = h if memory is None else memory
        v = module.v_proj(keys)

        def mix(v: Tensor) -> Tensor:  # (S, H * K) -> (L, H * K)
            return torch.einsum("hls,shk->lhk", weights, v.unflatten(-1, (module.heads, -1))).flatten(1)

        def within(R: Tensor, found: dict[str, Tensor]) -> tuple[Tensor | float, Tensor | float]:
            R_z = self.through(module.out_proj, mix(v), R)
            found[site] = R_z.unflatten(-1, (module.heads, -1)).sum((0, 2))
            R_keys = self.through(module.v_proj, keys, self.through(mix, v, R_z))
            return (R_keys, 0.0) if memory is None else (0.0, R_keys)

        return module.out_proj(mix(v)), within


@torch.no_grad()
@pytest.mark.parametrize("settings", [{}, OTHERS], ids=["pre", "post"])
def test_the_ratio_rule_equals_its_formula_on_terms_written_out(make_model, settings):
    model = make_model(d_model=6, ffn=5, encoder_layers=2, decoder_layers=1, **settings)
    if not settings:
        remove(model, shut(model, *UNEVEN, "encoder.1.enc-self"))
    pairs, model = [([7, 5], [18]), ([12], [])], model.double()
    steps: list[Step] = []
    for pair in pairs:
        batch = collate([pair], [0], 1)
        steps += Slow(model).run(batch.source[0], batch.target_in[0])
    walk = partial(RatioWalk, eps=EPS)
    for aggregation in ("step", "sum"):
        found = relevance(model, [collate(pairs, [0, 1], 1)], walk=walk, aggregation=aggregation)
        assert found.steps == len(steps)
        mean = {name: torch.stack([step[name] for step in steps]).mean(0) for name in steps[0]}
        for site, row in found.signed.items():
            torch.testing.assert_close(row, mean[site.name], rtol=1e-9, atol=1e-12)
        assert found.ledger.source == pytest.approx(float(mean["source"]))
        assert found.ledger.target == pytest.approx(float(mean["target"]))

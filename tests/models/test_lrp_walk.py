"""LRP against two slow ways that share no step with it: autograd, one backward a generation step; and each
step's terms written out.

Both take one sentence alone, without padding, and one generation step after the other. The first runs the
model's own forward with the attention weights and the norms' standard deviations detached, and takes gradient
x input. The second writes the terms of every sum out as a matrix (outputs, inputs), by the Jacobian of the
step, and applies a rule's formula number by number, as Voita et al.'s later code did.
"""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headgates.models.cpu_kernels
from headgates.analysis.lrp import Relevance, relevance
from headgates.data.batch import collate
from headgates.gates import HeadMap, find_sites, remove
from headgates.models.lrp_rules import Ratio
from headgates.models.lrp_walk import Walk
from headgates.models.ssru import SSRU
from headgates.models.transformer import FeedForward, Transformer

PAIRS = [([7, 5, 11, 4], [5, 7]), ([8, 6], [18, 4, 9, 11]), ([12], [])]
Steps = list[
    dict[str, Tensor]
]  # of every generation step: site -> R_h (H,), and "source" and "target" -> a number


def uneven(model: Transformer) -> Transformer:
    """Without two heads of one site, one of another, and all of a third."""
    going = {
        "encoder.0.enc-self": [1, 0, 1],
        "decoder.0.dec-self": [0, 0, 1],
        "encoder.1.enc-self": [1, 1, 1],
    }
    remove(
        model,
        HeadMap({site: torch.tensor(going.get(site.name, [0, 0, 0])).bool() for site in find_sites(model)}),
    )
    return model


Shares = Callable[[Tensor], Tensor]


def expected(steps: Steps, aggregation: str, shares: Shares) -> dict[str, Tensor]:
    """Shares of every entry, from the relevances of single steps."""
    if aggregation == "sum":
        return {name: shares(R) for name, R in mean(steps).items()}
    return {name: torch.stack([shares(step[name]) for step in steps]).mean(0) for name in steps[0]}


def mean(steps: Steps) -> dict[str, Tensor]:
    return {name: torch.stack([step[name] for step in steps]).mean(0) for name in steps[0]}


def assert_equal(found: Relevance, steps: Steps, aggregation: str) -> None:
    share = expected(steps, aggregation, lambda R: R.abs() / R.abs().sum())
    share_signed, signed = expected(steps, aggregation, lambda R: R / R.sum()), mean(steps)
    assert found.steps == len(steps)
    assert {site.name for site in found.share} == signed.keys() - {"source", "target"}
    for site in found.share:
        torch.testing.assert_close(found.share[site], share[site.name], rtol=1e-7, atol=1e-10)
        torch.testing.assert_close(found.share_signed[site], share_signed[site.name], rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(found.signed[site], signed[site.name], rtol=1e-7, atol=1e-10)
    if found.ledger is not None:
        assert found.ledger.source == pytest.approx(float(signed["source"]), rel=1e-7)
        assert found.ledger.target == pytest.approx(float(signed["target"]), rel=1e-7)


# gradient x input, by autograd

ENDS = ("source_norm", "target_norm")  # their inputs are the embeddings


def by_autograd(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> Steps:
    def norm(self: nn.LayerNorm, x: Tensor) -> Tensor:
        sigma = (x.var(-1, unbiased=False, keepdim=True) + self.eps).sqrt().detach()
        return self.weight * (x - x.mean(-1, keepdim=True)) / sigma + self.bias

    real = headgates.models.cpu_kernels.attention_weights

    def states(self: SSRU, x: Tensor, newest: None = None) -> tuple[Tensor, Tensor]:
        f, w = torch.sigmoid(self.forget(x)).detach(), self.update(x)
        found = [torch.zeros_like(w[:, 0])]
        for t in range(x.shape[1]):
            found.append(f[:, t] * found[-1] + (1 - f[:, t]) * w[:, t])
        keys = torch.stack(found[1:], 1)[:, None]
        return keys, keys[..., :0]

    def proportional(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: x * (f(x) / x).detach()

    for module in model.modules():
        if isinstance(module, FeedForward):
            monkeypatch.setattr(module, "activation", proportional(module.activation))
    monkeypatch.setattr(SSRU, "keys_values", states)
    monkeypatch.setattr(nn.LayerNorm, "forward", norm)
    monkeypatch.setattr(
        headgates.models.cpu_kernels, "attention_weights", lambda q, keys, bias: real(q, keys, bias).detach()
    )
    sites = {site: module for site, module in find_sites(model).items() if site.heads}
    seen: dict[str, Tensor] = {}

    def remember(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, inputs: seen.__setitem__(name, inputs[0])

    hooks = [module.out_proj.register_forward_pre_hook(remember(site.name)) for site, module in sites.items()]
    hooks += [getattr(model, name).register_forward_pre_hook(remember(name)) for name in ENDS]
    heads = {site.name: site.heads for site in sites}
    steps = []
    for pair in PAIRS:
        batch = collate([pair], [0], 1)
        for t in range(batch.target_out.shape[1]):
            logit = model(batch.source, batch.target_in)[0, t].max()
            inputs = {name: seen[name] for name in [*heads, *ENDS]}
            gradients = torch.autograd.grad(logit, list(inputs.values()), allow_unused=True)
            found = {}
            for (name, x), gradient in zip(inputs.items(), gradients, strict=True):
                R = torch.zeros_like(x) if gradient is None else gradient * x / logit  # (1, L, H * K)
                found[name] = (
                    R.unflatten(-1, (heads[name], -1)).sum((0, 1, 3)).detach()
                    if name in heads
                    else R.sum().detach()
                )
            steps.append(
                {
                    **{name: found[name] for name in heads},
                    "source": found["source_norm"],
                    "target": found["target_norm"],
                }
            )
    for hook in hooks:
        hook.remove()
    monkeypatch.undo()
    return steps


OTHERS = {"norm": "post", "activation": "gelu", "embedding_norm": True, "output_bias": True}
RECURRENT = {"activation": "swish", "embedding_norm": True, "decoder_mixer": "ssru"}


@pytest.mark.parametrize(
    "settings",
    [{"norm": "pre"}, {"norm": "post", "positions": "learned", "max_positions": 7}, OTHERS, RECURRENT],
)
@pytest.mark.parametrize("change", [lambda model: model, uneven])
def test_gradient_equals_one_backward_pass_of_autograd_a_step(make_model, monkeypatch, settings, change):
    model = change(make_model(**settings)).double()
    steps = by_autograd(model, monkeypatch)
    for aggregation in ("step", "sum"):
        for walk in (None, partial(Walk, rule=Ratio(eps=1e-13))):  # Ancona et al. 2018: the same without eps
            found = relevance(model, [collate(PAIRS, [0, 1, 2], 1)], walk=walk, aggregation=aggregation)
            assert_equal(found, steps, aggregation)


# any rule, with the terms written out

Share = Callable[
    [Tensor, Tensor], Tensor
]  # terms (O, I) and constants (O,) -> the part of R_o that goes to term i, (O, I)


def ratio(eps: float) -> Share:
    def share(z: Tensor, b: Tensor) -> Tensor:
        y = z.sum(1) + b
        return z / torch.where(y >= 0, y + eps, y - eps)[:, None]

    return share


class Slow:
    """One sentence forward; `R` then goes back through `ways`, a list of (function of the step, its
    input)."""

    def __init__(self, model: Transformer, share: Share):
        self.model, self.share = model, share
        self.pre = model.config.norm == "pre"

    def through(self, f: Callable[[Tensor], Tensor], x: Tensor, R: Tensor) -> Tensor:
        """R of f(x) -> R of x, f a sum of terms and a constant."""
        jacobian = torch.autograd.functional.jacobian(f, x).flatten(x.dim() * -1).flatten(0, -2)
        z = jacobian * x.flatten()
        return (R.flatten() @ self.share(z, f(torch.zeros_like(x)).flatten())).view_as(x)

    def norm(self, module: nn.Module, x: Tensor, R: Tensor) -> Tensor:
        if isinstance(module, nn.Identity):
            return R
        sigma = (x.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt()
        return self.through(
            lambda x: module.weight * (x - x.mean(-1, keepdim=True)) / sigma + module.bias, x, R
        )

    def run(self, source: Tensor, target: Tensor) -> Steps:
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
        for i, layer in enumerate(getattr(self.model, stack).layers):
            kinds = [("self", "enc-self" if memory is None else "dec-self")] + (
                [] if memory is None else [("cross", "cross")]
            )
            for name, kind in kinds:
                residual, module = getattr(layer, f"{name}_residual"), getattr(layer, f"{name}_attention")
                site = f"{stack}.{i}.{kind}"
                if isinstance(module, SSRU):
                    x, way = self.sub_layer(residual, x, lambda h, m=module: self.recurrence(m, h))
                    ways.append(way)
                    continue
                x, way = self.sub_layer(
                    residual,
                    x,
                    lambda h, m=module, s=site, k=kind: self.attention(m, s, k, h, memory, weights[s][0]),
                )
                ways.append(way)
            x, way = self.sub_layer(layer.feed_residual, x, lambda h, m=layer.feed_forward: self.feed(m, h))
            ways.append(way)
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

    def recurrence(self, module: SSRU, h: Tensor) -> tuple[Tensor, Callable]:
        f = torch.sigmoid(module.forget(h))

        def states(w: Tensor) -> Tensor:  # (T, D) -> (T, D)
            c = [torch.zeros_like(w[0])]
            for f_t, w_t in zip(f, w, strict=True):
                c.append(f_t * c[-1] + (1 - f_t) * w_t)
            return torch.stack(c[1:])

        def within(R: Tensor, found: dict[str, Tensor]) -> tuple[Tensor, float]:
            return self.through(module.update, h, self.through(states, module.update(h), R)), 0.0

        return F.relu(states(module.update(h))), within

    def attention(
        self, module: nn.Module, site: str, kind: str, h: Tensor, memory: Tensor | None, weights: Tensor
    ) -> tuple[Tensor, Callable]:
        if module.heads == 0:
            return module.out_proj.bias.expand_as(h), lambda R, found: (0.0, 0.0)
        keys = memory if kind == "cross" else h
        v = module.v_proj(keys)

        def mix(v: Tensor) -> Tensor:  # (S, H * K) -> (L, H * K)
            return torch.einsum("hls,shk->lhk", weights, v.unflatten(-1, (module.heads, -1))).flatten(1)

        def within(R: Tensor, found: dict[str, Tensor]) -> tuple[Tensor | float, Tensor | float]:
            R_z = self.through(module.out_proj, mix(v), R)
            found[site] = R_z.unflatten(-1, (module.heads, -1)).sum((0, 2))
            R_keys = self.through(module.v_proj, keys, self.through(mix, v, R_z))
            return (0.0, R_keys) if kind == "cross" else (R_keys, 0.0)

        return module.out_proj(mix(v)), within


@torch.no_grad()
@pytest.mark.parametrize(
    ("settings", "change"),
    [
        ({"norm": "pre"}, uneven),
        ({"norm": "post"}, lambda model: model),
        (OTHERS, lambda model: model),
        (RECURRENT, uneven),
    ],
)
def test_the_ratio_rule_equals_its_formula_on_terms_written_out(make_model, settings, change):
    model = change(make_model(d_model=6, ffn=5, encoder_layers=2, decoder_layers=1, **settings)).double()
    pairs = [([7, 5], [18]), ([12], [])]
    slow = Slow(copy.deepcopy(model), ratio(0.5))
    steps: Steps = []
    for pair in pairs:
        batch = collate([pair], [0], 1)
        steps += slow.run(batch.source[0], batch.target_in[0])
    for aggregation in ("step", "sum"):
        assert_equal(
            relevance(
                model,
                [collate(pairs, [0, 1], 1)],
                walk=partial(Walk, rule=Ratio(eps=0.5)),
                aggregation=aggregation,
            ),
            steps,
            aggregation,
        )

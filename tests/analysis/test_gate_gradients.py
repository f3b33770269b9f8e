"""Gradients to the gate of every head: relevance by them against the step-by-step walk, and both scores on a
model that is not ours."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.analysis.batches import batch_loss
from headgates.analysis.gate_gradients import head_factors
from headgates.analysis.lrp import relevance
from headgates.data.batch import Batch, collate
from headgates.gates import (
    SITE_RULES,
    HeadMap,
    HeadSite,
    SiteRule,
    attach,
    find_sites,
    gate_heads,
    reattach,
    remove,
)
from headgates.models.lrp_rules import Ratio
from headgates.models.lrp_walk import Walk
from headgates.models.transformer import Transformer

PAIRS = [
    ([7, 5, 11, 4, 9, 13], [5, 7]),
    ([8, 6, 22], [18, 4, 9, 11]),
    ([12, 4, 4, 17], [6]),
    ([21], []),
    ([9, 9], [12, 3, 16]),
]
REMOVED = {
    "encoder.0.enc-self": [1, 0, 1],
    "decoder.0.dec-self": [1, 1, 1],
    "encoder.1.enc-self": [1, 1, 1],
    "decoder.1.cross": [0, 1, 0],
}


def batches() -> list[Batch]:
    return [collate(PAIRS[i : i + 3], list(range(i, min(i + 3, len(PAIRS)))), 1) for i in (0, 3)]


def whole(model: Transformer) -> None:
    pass


def without_heads(model: Transformer) -> None:
    remove(
        model,
        HeadMap({site: torch.tensor(REMOVED.get(site.name, [0, 0, 0])).bool() for site in find_sites(model)}),
    )


def with_gates(model: Transformer) -> None:
    bank = attach(model, gate="mask")
    bank.assign({site: torch.tensor([0.3, 1.0, 0.0]) for site in bank.sites})


def with_gates_on_one_kind(model: Transformer) -> None:
    attach(model, gate="l0", kinds=["cross"], log_alpha=0.7)


@pytest.mark.parametrize("change", [whole, without_heads, with_gates, with_gates_on_one_kind])
@pytest.mark.parametrize(("aggregation", "seed"), [("step", "one"), ("sum", "logit")])
def test_the_gates_gradient_is_the_walk_without_its_stabiliser(make_model, change, aggregation, seed):
    model, tolerance = make_model(norm="post", positions="learned", max_positions=11), 1e-8
    change(model)
    model.double()
    ours, walk = (
        relevance(model, batches(), walk=walk, aggregation=aggregation, seed=seed)
        for walk in (None, partial(Walk, rule=Ratio(eps=1e-14)))
    )
    assert list(ours.share) == list(walk.share)
    assert ours.steps == walk.steps
    torch.testing.assert_close(ours.share.flat(), walk.share.flat(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours.signed.flat(), walk.signed.flat(), rtol=tolerance, atol=tolerance)


def test_gates_that_the_model_had_are_back_afterwards(make_model):
    model = make_model()
    bank = attach(model.train(), gate="l0", kinds=["cross"])
    relevance(model, batches(), kinds=["dec-self"])
    assert model.head_gates is bank
    assert bank.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    for site, module in find_sites(model).items():
        assert module.gate is dict(bank.items()).get(site)
    with pytest.raises(ValueError, match="already has gates"):
        reattach(model, bank)


def test_heads_that_nothing_depends_on_have_a_gradient_of_zero(make_model):
    model, batch = make_model(), batches()[0]
    with head_factors(model) as factors:
        factors.renew(batch, per="sentence")
        memory, _ = model.encode(batch.source)
        found = factors.gradients(memory.sum())
    assert {site.kind for site, row in found.items() if row.any()} == {"enc-self"}
    assert all(row.shape == (3, 3) for row in found.values())


@torch.no_grad()
def test_values_without_a_gradient_are_refused(make_model):
    model, batch = make_model(), batches()[0]
    with head_factors(model) as factors:
        factors.renew(batch, per="batch")
        value = batch_loss(model, batch)
        with pytest.raises(ValueError, match="no gradient reaches the heads"):
            factors.gradients(value)


# a classifier of another make: a class token, fused attention, GELU, a norm of its own


@dataclass
class Texts:
    ids: Tensor  # (B, L), 0 is padding

    def to(self, device: torch.device) -> "Texts":
        return Texts(self.ids.to(device))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.num_heads, self.gate = heads, None
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)
        )
        z = F.scaled_dot_product_attention(q, k, v, seen[:, None, None])
        if self.gate is not None:
            z = gate_heads(z, self.gate())
        return self.out(z.transpose(1, 2).flatten(2))


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention, self.norm, self.last = Attention(width, heads), nn.LayerNorm(width), RMSNorm(width)
        self.inner, self.outer = nn.Linear(width, 11), nn.Linear(11, width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.norm(x + self.attention(x, seen))
        return self.last(x + self.outer(F.gelu(self.inner(x))))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(17, 10)
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(Layer(10, 5) for _ in range(2))})
        self.dropout, self.top = nn.Dropout(0.5), nn.Linear(10, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.encoder["layers"]:
            x = layer(x, ids != 0)
        return self.top(self.dropout(x[:, 0]))


@pytest.fixture
def classifier(monkeypatch) -> Classifier:
    monkeypatch.setitem(SITE_RULES, "Attention", SiteRule(heads="num_heads", slot="gate"))
    torch.manual_seed(0)
    model = Classifier().double()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    return model.train()


TEXTS = [torch.tensor(row) for row in ([3, 7, 16, 2, 9], [5, 5], [4, 11, 8])]
ROWS = Texts(nn.utils.rnn.pad_sequence(TEXTS, batch_first=True))


def queries(model: nn.Module, site: HeadSite, batch: Texts) -> Tensor:
    return batch.ids != 0


def by_hand(model: Classifier, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The logits (3,) of one text, and the heads' outputs (5, L, 2) of every layer, with constant weights,
    norms and GELU's ratios."""
    x, seen = model.embedding(ids), []
    for layer in model.encoder["layers"]:
        q, k, v = (each.unflatten(-1, (5, 2)).transpose(0, 1) for each in layer.attention.qkv(x).chunk(3, -1))
        z = (q @ k.transpose(1, 2) / 2**0.5).exp()
        z = (z / z.sum(-1, keepdim=True)).detach() @ v
        seen.append(z)
        x = x + layer.attention.out(z.transpose(0, 1).flatten(1))
        centred = x - x.mean(-1, keepdim=True)
        x = (
            centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt().detach() * layer.norm.weight
            + layer.norm.bias
        )
        a = layer.inner(x)
        x = x + layer.outer(a * (F.gelu(a) / a).detach())
        x = x * layer.last.weight / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt().detach()
    return model.top(x[0]), seen


def test_relevance_of_a_classifier_is_gradient_times_input_at_its_heads_outputs(classifier):
    found = relevance(
        classifier,
        [ROWS],
        logits=lambda model, batch: (
            model(batch.ids).max(-1, keepdim=True).values,
            torch.ones(3, 1, dtype=torch.bool),
        ),
        queries=queries,
    )
    loop = []
    for ids in TEXTS:
        logits, seen = by_hand(classifier, ids)
        gradients = torch.autograd.grad(logits.max(), seen)
        loop.append(
            torch.stack(
                [(g * z).sum((1, 2)) / logits.max() for g, z in zip(gradients, seen, strict=True)]
            ).detach()
        )
    R = torch.stack(loop)  # (B, layers, heads)
    assert [site.name for site in found.share] == ["encoder.0.enc-self", "encoder.1.enc-self"]
    torch.testing.assert_close(torch.stack(list(found.signed.values())), R.mean(0), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        torch.stack(list(found.share.values())), (R.abs() / R.abs().sum(2, keepdim=True)).mean(0)
    )
    torch.testing.assert_close(
        torch.stack(list(found.share_signed.values())), (R / R.sum(2, keepdim=True)).mean(0)
    )
    assert classifier.training


def test_the_walk_refuses_a_model_that_it_does_not_know(classifier):
    with pytest.raises(ValueError, match="walks through a Transformer of ours, got Classifier"):
        relevance(classifier, [ROWS], walk=Walk)

"""Gradients to the gate of every head: where there is none, and relevance of a model that is not ours."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.analysis.batches import batch_loss
from headgates.analysis.gate_gradients import head_factors
from headgates.analysis.lrp import relevance
from headgates.analysis.ratio_walk import RatioWalk
from headgates.data.batch import Batch, collate
from headgates.gates import SITE_RULES, HeadSite, SiteRule, gate_heads


@pytest.fixture
def texts() -> Batch:
    return collate([([7, 5, 11], [5, 7]), ([8], [18, 4, 9])], [0, 1], 1)


def test_heads_that_nothing_depends_on_have_a_gradient_of_zero(make_model, texts):
    model = make_model()
    with head_factors(model) as factors:
        factors.renew(texts, per="sentence")
        memory, _ = model.encode(texts.source)
        found = factors.gradients(memory.sum())
    assert {site.kind for site, row in found.items() if row.any()} == {"enc-self"}
    assert all(row.shape == (2, 3) for row in found.values())


@torch.no_grad()
def test_values_without_a_gradient_are_refused(make_model, texts):
    model = make_model()
    with head_factors(model) as factors:
        factors.renew(texts, per="batch")
        value = batch_loss(model, texts)
        with pytest.raises(ValueError, match="no gradient reaches the heads"):
            factors.gradients(value)


# a classifier of another make: a class token, fused attention, GELU, a norm of its own


@dataclass
class Texts:
    ids: Tensor  # (B, L), 0 is padding

    def to(self, device: torch.device) -> "Texts":
        return self


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


class Layer(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention, self.norm = Attention(width, heads), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 11), nn.Linear(11, width)
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.norm(x + self.attention(x, seen))
        x = x + self.outer(F.gelu(self.inner(x)))
        return self.scale * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


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
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt().detach() * layer.norm.weight + layer.norm.bias
        a = layer.inner(x)
        x = x + layer.outer(a * (F.gelu(a) / a).detach())
        x = x * layer.scale / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt().detach()
    return model.top(x[0]), seen


def test_relevance_of_a_classifier_is_gradient_times_input_at_its_heads_outputs(classifier):
    def logits(model: nn.Module, batch: Texts) -> tuple[Tensor, Tensor]:
        return model(batch.ids).max(-1, keepdim=True).values, torch.ones(3, 1, dtype=torch.bool)

    def queries(model: nn.Module, site: HeadSite, batch: Texts) -> Tensor:
        return batch.ids != 0

    found = relevance(classifier, [ROWS], logits=logits, queries=queries)
    loop = []
    for ids in TEXTS:
        top, seen = by_hand(classifier, ids)
        gradients = torch.autograd.grad(top.max(), seen)
        loop.append([(g * z).sum((1, 2)) / top.max() for g, z in zip(gradients, seen, strict=True)])
    R = torch.stack([torch.stack(each) for each in loop]).detach()  # (B, layers, heads)
    expected = {
        "signed": R.mean(0),
        "share": (R.abs() / R.abs().sum(2, keepdim=True)).mean(0),
        "share_signed": (R / R.sum(2, keepdim=True)).mean(0),
    }
    assert [site.name for site in found.share] == ["encoder.0.enc-self", "encoder.1.enc-self"]
    for name, each in expected.items():
        torch.testing.assert_close(found.head_maps()[name].flat(), each.flatten(), rtol=1e-10, atol=1e-12)
    assert classifier.training
    with pytest.raises(ValueError, match="embeddings of our own Transformer, got Classifier"):
        relevance(classifier, [ROWS], walk=RatioWalk)

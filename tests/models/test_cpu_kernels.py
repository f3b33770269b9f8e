"""Every kernel computes what one line of torch does, and is taken only where it may be."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from headgates.models import cpu_kernels
from headgates.models.cpu_kernels import (
    CACHES,
    CHUNK_WIDTH,
    LEAST_ROWS,
    Dropout,
    Linear,
    change_dropout,
    keep_mask,
    onednn_is_faster,
    product,
    round_up,
    top,
)

N = 400_009
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


# ---------------------------------------------------------------- dropout


def dropped(p: float) -> torch.Tensor:
    torch.manual_seed(0)
    return Dropout(p).train()(torch.ones(N))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_units_are_dropped_at_the_rate_rounded_to_a_256th_and_the_expectation_is_kept(p):
    y, rounded = dropped(p).double(), round(p * 256) / 256
    assert abs(float((y == 0).double().mean()) - rounded) < 4 * (rounded * (1 - rounded) / N) ** 0.5
    assert sorted(y.unique().tolist()) == [0.0, pytest.approx(1 / (1 - rounded))]


def test_the_eight_bytes_of_a_draw_are_fair_and_independent():
    torch.manual_seed(0)
    lanes = (keep_mask(torch.Size([50_021, 8]), 26, torch.float32) == 0).double()
    p = 26 / 256
    assert ((lanes.mean(0) - p).abs() < 4 * (p * (1 - p) / len(lanes)) ** 0.5).all()
    assert float((torch.corrcoef(lanes.T) - torch.eye(8)).abs().max()) < 4 / len(lanes) ** 0.5


def test_the_gradient_and_the_type_go_through_kept_units_alone():
    x = torch.ones(7, 149, dtype=torch.bfloat16, requires_grad=True)
    y = Dropout(0.5).train()(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert y.dtype == torch.bfloat16


def test_nothing_is_dropped_in_evaluation_or_at_zero_and_a_unit_is_kept_near_one():
    x = torch.randn(5, 7)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x
    assert sorted(dropped(0.999).unique().tolist()) == [0.0, 256.0]


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_a_probability_outside_its_range_is_refused(p):
    with pytest.raises(ValueError, match=r"dropout probability in \[0, 1\)"):
        Dropout(p)


def test_only_dropout_that_is_there_is_changed():
    own, torchs, none = Dropout(0.25), nn.Dropout(0.1), Dropout(0.0)
    model = nn.Sequential(own, torchs, none)
    change_dropout(model, 0.5)
    assert (own.p, torchs.p, none.p) == (0.5, 0.5, 0.0)
    change_dropout(model, 0.0)
    with pytest.raises(ValueError, match="made without dropout, so there is none to change; leave it out"):
        change_dropout(model, 0.1)


# ---------------------------------------------------------------- linear layers


@pytest.fixture
def rows_asked(monkeypatch):
    """The numbers of rows that oneDNN is asked for, where even the smallest products go to it."""
    asked, onednn = [], cpu_kernels.onednn

    def recorded(x, weight, bias):
        asked.append(x.numel() // x.shape[-1])
        return onednn(x, weight, bias)

    monkeypatch.setattr(cpu_kernels, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(cpu_kernels, "LEAST_PRODUCT", 1)
    monkeypatch.setattr(cpu_kernels, "onednn", recorded)
    return asked


@needs_onednn
@pytest.mark.parametrize("shape", [(16, 13), (3, 7, 13), (300, 64)])
@pytest.mark.parametrize("biased", [True, False])
def test_products_are_those_in_double_precision(shape, biased, rows_asked):
    x, weight, bias = random(*shape), random(shape[-1], 31).t(), random(31) if biased else None
    expected = F.linear(x.double(), weight.double(), bias.double() if biased else None)
    with torch.inference_mode():
        found = product(x, weight, bias)
    assert rows_asked == [round_up(x.numel() // x.shape[-1])]
    torch.testing.assert_close(found, expected.float())


@pytest.mark.parametrize(("shape", "outputs"), [((0, 13), 31), ((64, 0), 31), ((13,), 31)])
def test_empty_products_and_single_vectors_have_their_shapes(shape, outputs, rows_asked):
    with torch.no_grad():
        found = product(random(*shape), random(outputs, shape[-1]), random(outputs))
    assert found.shape == (*shape[:-1], outputs)
    assert rows_asked == []


class Watching(torch.Tensor):
    """A tensor that sees the operations on it."""


@pytest.mark.parametrize("why", ["gradient", "autocast", "double", "few rows", "watched"])
def test_elsewhere_the_product_is_torch_s_own(why, rows_asked):
    layer, x = Linear(13, 31), random(LEAST_ROWS - 1 if why == "few rows" else 64, 13)
    if why == "double":
        layer, x = layer.double(), x.double()
    x = x.as_subclass(Watching) if why == "watched" else x
    grad, autocast = why == "gradient", torch.autocast("cpu", torch.bfloat16, enabled=why == "autocast")
    with torch.set_grad_enabled(grad), autocast:
        found = layer(x)
        assert rows_asked == []
        assert torch.equal(found, F.linear(x, layer.weight, layer.bias))
    assert found.requires_grad == grad


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_exporters_see_torch_s_own_product(rows_asked):
    with torch.no_grad():
        torch.export.export(Linear(13, 31), (random(64, 13),))
        torch.jit.trace(Linear(13, 31), random(64, 13), check_trace=False)
    assert rows_asked == []


def test_rows_are_rounded_up_by_little_and_to_few_numbers():
    assert all(rows <= round_up(rows) < rows + max(16, rows / 8) for rows in range(1, 10_000))
    assert len({round_up(rows) for rows in range(LEAST_ROWS, 8_193)}) < 100


@needs_onednn
@pytest.mark.parametrize(
    ("vendor", "capability", "faster"),
    [("GenuineIntel", "AVX512", False), ("AuthenticAMD", "AVX2", False), ("AuthenticAMD", "AVX512", True)],
)
def test_onednn_is_taken_where_it_was_measured_with_bounded_caches(vendor, capability, faster, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "processor_vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for name in CACHES:
        monkeypatch.setenv(name, "")  # so that what was there comes back
        monkeypatch.delenv(name)
    assert onednn_is_faster.__wrapped__() is faster
    assert {os.environ.get(name) for name in CACHES} == {"16" if faster else None}


# ---------------------------------------------------------------- top


SIZES = [1, CHUNK_WIDTH - 1, 3 * CHUNK_WIDTH, 7 * CHUNK_WIDTH + 1, 8000]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("k", [1, 3, 10])
def test_the_largest_are_the_first_of_a_sort_and_equal_numbers_come_each_from_its_own_place(n, k):
    k = min(k, n)
    for x in (random(5, n), random(5, n).round()):  # some -3 to 3
        values, positions = top(x, k)
        assert torch.equal(values, x.sort(1, descending=True)[0][:, :k])
        assert torch.equal(x.gather(1, positions), values)
        assert all(len(set(row)) == k for row in positions.tolist())
    assert top(x, 1)[1][:, 0].tolist() == [row.index(max(row)) for row in x.tolist()]


def test_minus_infinity_fills_up_and_what_is_not_a_number_comes_first():
    x = torch.full((2, 8000), -torch.inf)
    x[0, 4711], x[0, 7999], x[1, 17] = 1.0, 2.0, torch.nan
    values, positions = top(x, 3)
    assert values[0].tolist() == [2.0, 1.0, -torch.inf]
    assert positions[0, :2].tolist() == [7999, 4711]
    assert positions[1, 0] == 17
    assert all(len(set(row)) == 3 for row in positions.tolist())

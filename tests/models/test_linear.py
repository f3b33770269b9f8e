"""Products by oneDNN are those of numpy in twice the precision, are taken only where they may be, and few of
them are kept."""

import os

import pytest
import torch

from headgates.models import linear
from headgates.models.linear import LEAST_ROWS, Linear, bound_caches, onednn_is_faster, product, round_up

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)


@pytest.fixture
def rows_asked(monkeypatch):
    """The numbers of rows that oneDNN is asked for, where even the smallest products go to it on any
    processor."""
    asked, onednn = [], linear.onednn

    def recorded(x, weight, bias):
        asked.append(x.numel() // x.shape[-1])
        return onednn(x, weight, bias)

    monkeypatch.setattr(linear, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(linear, "LEAST_PRODUCT", 1)
    monkeypatch.setattr(linear, "onednn", recorded)
    return asked


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@needs_onednn
@pytest.mark.parametrize("shape", [(16, 13), (17, 13), (3, 7, 13), (5, 1, 29, 1), (300, 64)])
@pytest.mark.parametrize("outputs", [1, 31, 128])
@pytest.mark.parametrize("biased", [True, False])
def test_products_are_those_in_double_precision(shape, outputs, biased, rows_asked):
    x, weight, bias = random(*shape), random(outputs, shape[-1]), random(outputs) if biased else None
    expected = x.numpy().astype("float64") @ weight.numpy().astype("float64").T + (
        bias.numpy() if biased else 0
    )
    with torch.inference_mode():
        found = product(x, weight, bias)
    assert rows_asked == [round_up(x.numel() // x.shape[-1])]
    torch.testing.assert_close(found, torch.from_numpy(expected).float())


@needs_onednn
def test_inputs_that_lie_apart_in_memory_are_read_as_they_are(rows_asked):
    x, weight = random(13, 48).t(), random(31, 26).t()[:13].t()  # (48, 13), (31, 13)
    with torch.no_grad():
        torch.testing.assert_close(product(x, weight, None), x @ weight.t())
    assert rows_asked == [48]


@pytest.mark.parametrize(
    ("shape", "outputs"),
    [((0, 13), 31), ((64, 13), 0), ((64, 0), 31), ((0, 0), 0), ((13,), 31), ((2, 0, 13), 31)],
)
def test_empty_products_and_single_vectors_have_their_shapes(shape, outputs, rows_asked):
    with torch.no_grad():
        found = product(random(*shape), random(outputs, shape[-1]), random(outputs))
        torch.testing.assert_close(
            found, torch.nn.functional.linear(random(*shape), random(outputs, shape[-1]), random(outputs))
        )
    assert found.shape == (*shape[:-1], outputs)
    assert rows_asked == []


class Watching(torch.Tensor):
    """A tensor that sees the operations on it."""


@pytest.mark.parametrize("why", ["gradient", "autocast", "double", "few rows", "watched", "small"])
def test_elsewhere_the_product_is_torch_s_own(why, rows_asked, monkeypatch):
    layer, x = Linear(13, 31), random(LEAST_ROWS - 1 if why == "few rows" else 64, 13)
    if why == "double":
        layer, x = layer.double(), x.double()
    if why == "small":
        monkeypatch.setattr(linear, "LEAST_PRODUCT", 64 * 13 * 31 + 1)
    x = x.as_subclass(Watching) if why == "watched" else x
    with (
        torch.set_grad_enabled(why == "gradient"),
        torch.autocast("cpu", torch.bfloat16, enabled=why == "autocast"),
    ):
        found = layer(x)
        assert rows_asked == []
        assert torch.equal(found, torch.nn.functional.linear(x, layer.weight, layer.bias))
    assert found.requires_grad == (why == "gradient")


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_exporters_see_torch_s_own_product(rows_asked):
    x = random(64, 13)
    with torch.no_grad():
        torch.export.export(Linear(13, 31), (x,))
        torch.jit.trace(Linear(13, 31), x, check_trace=False)
    assert rows_asked == []


def test_rows_are_rounded_up_by_little_and_to_few_numbers():
    assert all(rows <= round_up(rows) < rows + max(16, rows / 8) for rows in range(1, 10_000))
    assert len({round_up(rows) for rows in range(LEAST_ROWS, 8_193)}) < 100
    assert [round_up(rows) for rows in (16, 17, 80, 320, 640)] == [16, 32, 80, 320, 640]


@pytest.mark.parametrize(
    ("vendor", "capability"), [("GenuineIntel", "AVX512"), ("", "AVX512"), ("AuthenticAMD", "AVX2")]
)
def test_a_processor_that_was_not_measured_keeps_torch_s_own_product(vendor, capability, monkeypatch):
    monkeypatch.setattr(linear, "processor_vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert onednn_is_faster.__wrapped__() is False


@needs_onednn
def test_caches_are_bounded_before_the_first_product(monkeypatch):
    monkeypatch.setattr(linear, "processor_vendor", lambda: "AuthenticAMD")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    for name in linear.CACHES:
        monkeypatch.setenv(name, "")  # so that what was there comes back
        monkeypatch.delenv(name)
    assert onednn_is_faster.__wrapped__() is True
    assert {name: os.environ[name] for name in linear.CACHES} == linear.CACHES


def test_caches_are_bounded_unless_the_user_says_how_large_they_are(monkeypatch):
    own, other = linear.CACHES
    monkeypatch.setenv(own, "100")
    monkeypatch.setenv(other, "")
    monkeypatch.delenv(other)
    bound_caches()
    assert os.environ[own] == "100"
    assert os.environ[other] == "16"

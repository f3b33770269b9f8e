"""Dropout from shared random bytes: the right rate in every byte, the expectation kept."""

import pytest
import torch
from torch import nn

from headgates.models.dropout import Dropout, change_dropout, keep_mask

N = 400_009


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def dropped(p: float) -> torch.Tensor:
    return Dropout(p).train()(torch.ones(N))


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_units_are_dropped_at_the_rate_rounded_to_a_256th(p):
    rounded = round(p * 256) / 256
    assert abs(rounded - p) <= 1 / 512
    assert abs(float((dropped(p) == 0).double().mean()) - rounded) < 4 * (rounded * (1 - rounded) / N) ** 0.5


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_a_unit_is_exactly_zero_or_exactly_the_scale(p):
    assert sorted(dropped(p).unique().tolist()) == [0.0, pytest.approx(256 / (256 - round(p * 256)))]


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
def test_the_expectation_is_kept(p):
    y = dropped(p).double()
    assert abs(float(y.mean()) - 1) < 4 * float(y.std()) / N**0.5


@pytest.mark.parametrize("threshold", [26, 77, 128, 230])
def test_all_eight_bytes_of_a_draw_are_fair(threshold):
    lanes = (keep_mask(torch.Size([50_021, 8]), threshold, torch.float32) == 0).double()
    p = threshold / 256
    assert ((lanes.mean(0) - p).abs() < 4 * (p * (1 - p) / len(lanes)) ** 0.5).all()


def test_the_bytes_of_a_draw_do_not_depend_on_each_other():
    lanes = (keep_mask(torch.Size([50_021, 8]), 128, torch.float32) == 0).double()
    off_diagonal = torch.corrcoef(lanes.T) - torch.eye(8)
    assert float(off_diagonal.abs().max()) < 4 / len(lanes) ** 0.5


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 5, 7), (0,)])
def test_any_shape_is_filled(shape):
    assert Dropout(0.5).train()(torch.ones(shape)).shape == shape


def test_the_gradient_flows_through_kept_units_alone():
    x = torch.ones(1009, requires_grad=True)
    y = Dropout(0.5).train()(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_the_type_is_kept():
    assert Dropout(0.5).train()(torch.ones(5, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_the_same_seed_drops_the_same_units():
    first = dropped(0.3)
    torch.manual_seed(0)
    assert torch.equal(dropped(0.3), first)


def test_evaluation_does_nothing():
    x = torch.randn(5, 7)
    assert Dropout(0.5).eval()(x) is x


def test_a_probability_of_zero_does_nothing():
    x = torch.randn(5, 7)
    assert Dropout(0.0).train()(x) is x


def test_a_probability_just_below_one_still_keeps_a_unit_now_and_then():
    y = dropped(0.999)
    assert sorted(y.unique().tolist()) == [0.0, 256.0]


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_a_probability_outside_its_range_is_refused(p):
    with pytest.raises(ValueError, match=r"dropout probability in \[0, 1\)"):
        Dropout(p)


def test_only_dropout_that_is_there_is_changed():
    own, torchs, none = Dropout(0.25), nn.Dropout(0.1), Dropout(0.0)
    model = nn.Sequential(own, torchs, none).train()
    change_dropout(model, 0.5)
    assert (own.p, torchs.p, none.p) == (0.5, 0.5, 0.0)
    assert abs(float((own(torch.ones(N)) == 0).double().mean()) - 0.5) < 0.005
    change_dropout(model, 0.0)
    assert torch.equal(own(torch.ones(N)), torch.ones(N))
    change_dropout(model, 0.0)
    with pytest.raises(ValueError, match="made without dropout, so there is none to change; leave it out"):
        change_dropout(model, 0.1)

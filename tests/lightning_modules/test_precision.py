import pytest
import torch

from headgates.lightning_modules import precision


@pytest.mark.parametrize(("seconds_in_bf16", "expected"), [(0.1, "bf16"), (0.9, "32"), (9.0, "32")])
def test_auto_takes_bf16_only_where_its_products_were_timed_clearly_faster(
    monkeypatch, seconds_in_bf16, expected
):
    seconds = {torch.float32: 1.0, torch.bfloat16: seconds_in_bf16}
    monkeypatch.setattr(precision, "product_seconds", lambda dtype, tokens=0: seconds[dtype])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    precision.bf16_gain.cache_clear()
    assert precision.resolve_precision("auto") == expected
    precision.bf16_gain.cache_clear()


def test_a_named_precision_is_taken_without_a_measurement(monkeypatch):
    monkeypatch.setattr(precision, "bf16_gain", lambda: pytest.fail("measured"))
    assert [precision.resolve_precision(name) for name in ("32", "bf16")] == ["32", "bf16"]

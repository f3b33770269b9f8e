import pytest
import torch

from headgates.configs.settings import ModelConfig, Settings, TextConfig
from headgates.lightning_modules import precision

SIZES = {"text": TextConfig(vocab_size=101, max_tokens=120)}


def config_of(d_model=8, **settings) -> Settings:
    return Settings(model=ModelConfig(d_model=d_model, ffn=16, heads=2), **SIZES, **settings)


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """timed(seconds of a step in bf16 by model width); the widths whose steps were timed. fp32 takes 1."""
    monkeypatch.setenv("HEADGATES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(precision, "product_seconds", lambda dtype: 1.0)
    monkeypatch.setattr(precision, "LEAST_SECONDS", 0.0)
    measured = []

    def of(seconds):
        def step_seconds(model, ids, *, bf16):
            measured.append(model.config.d_model)
            return seconds[model.config.d_model] if bf16 else 1.0

        monkeypatch.setattr(precision, "step_seconds", step_seconds)
        return measured

    return of


@pytest.mark.parametrize(("seconds_in_bf16", "expected"), [(0.5, "bf16"), (0.97, "32"), (1.5, "32")])
def test_auto_takes_bf16_only_where_a_step_of_this_model_was_timed_clearly_faster(
    timed, seconds_in_bf16, expected
):
    timed({8: seconds_in_bf16, 16: 1.2})
    said = []
    assert precision.resolve_precision(config_of(), "a CPU", said.append) == expected
    assert said[0].startswith(f"precision: {expected}, because a training step in bf16 has")
    assert precision.resolve_precision(config_of(16), "a CPU") == "32", "of another size"


def test_a_size_of_model_is_measured_once_on_a_machine(timed, tmp_path):
    measured = timed({8: 0.5, 16: 0.5})
    for _ in range(3):  # as processes that follow each other
        precision.resolve_precision(config_of(), "a CPU")
    once = len(measured)
    precision.resolve_precision(config_of(16), "a CPU")
    precision.resolve_precision(config_of(), "another CPU")
    assert measured == [8] * once + [16] * once + [8] * once
    for path in tmp_path.glob("cache/precision/*.json"):
        path.write_text("{")  # torn: measured again, and written
    for _ in range(2):
        precision.resolve_precision(config_of(), "a CPU")
    assert len(measured) == 4 * once


def test_a_measured_step_has_the_tokens_of_a_batch_and_leaves_the_random_numbers_alone(monkeypatch):
    monkeypatch.setattr(precision, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(precision, "product_seconds", lambda dtype: 1.0)  # else a slow one ends it
    step_seconds, tokens = precision.step_seconds, []

    def noting(model, ids, *, bf16):
        tokens.append(ids.numel())
        return step_seconds(model, ids, bf16=bf16)

    monkeypatch.setattr(precision, "step_seconds", noting)
    state = torch.get_rng_state()
    assert precision.bf16_gain(config_of()) > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert set(tokens) == {120}


def test_a_named_precision_is_taken_without_a_measurement(monkeypatch):
    monkeypatch.setattr(precision, "known_gain", lambda *_: pytest.fail("measured"))
    for name in ("32", "bf16"):
        assert precision.resolve_precision(config_of(precision=name), "a CPU") == name

"""Multiply-adds are those of the matrix products, by whichever kernel a model runs."""

import pytest
import torch
import transformers
from torch import nn

from headgates.planning.timing import Timer, multiply_adds

WIDTH, FFN, LAYERS, WORDS, ROWS = 32, 64, 3, 9, 4


def of_a_layer(words: int) -> int:
    """Four projections, scores and sums, two matrices of the feed-forward layer, at each word of a row."""
    return words * (4 * WIDTH * WIDTH + 2 * words * WIDTH + 2 * WIDTH * FFN)


def test_layers_of_torch_are_counted_though_torch_has_fused_kernels_for_them():
    layer = nn.TransformerEncoderLayer(WIDTH, 4, FFN, batch_first=True)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=True)
    x = torch.randn(ROWS, WORDS, WIDTH)
    assert multiply_adds(lambda model: model(x))(model) == LAYERS * ROWS * of_a_layer(WORDS)
    assert torch.backends.mha.get_fastpath_enabled(), "as it was"


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_attention_scores_are_counted_by_every_kernel(kernel):
    sizes = dict(vocab_size=16, hidden_size=WIDTH, num_attention_heads=4, intermediate_size=FFN)
    config = transformers.BertConfig(**sizes, num_hidden_layers=LAYERS, attn_implementation=kernel)
    model = transformers.BertModel(config, add_pooling_layer=False)
    ids = torch.randint(0, 16, (ROWS, 64))
    assert multiply_adds(lambda model: model(ids))(model) == LAYERS * ROWS * of_a_layer(64)


def test_gpus_are_waited_for_before_a_clock_is_read(monkeypatch):
    said, model = [], nn.Linear(2, 2)
    timer = Timer(model, lambda model: said.append("run"))
    assert "wait" not in said
    timer.others, timer.repeats = {"the first", "the second"}, 2
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: said.append("wait"))
    said.clear()
    timer.seconds(model)
    assert said == ["wait"] * 2 + ["run"] * 2 + ["wait"] * 2


def test_a_run_without_a_matrix_product_is_refused_in_words_of_our_own():
    with pytest.raises(ValueError, match="no multiply-adds are counted in a run of the model; give run="):
        multiply_adds(lambda model: None)(nn.Linear(2, 2))

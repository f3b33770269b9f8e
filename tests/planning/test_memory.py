"""What `prune` allocates beside the model, block by block, as torch's profiler counts it."""

import pytest
import torch
import transformers
from torch.profiler import ProfilerActivity, profile

from headgates.planning.prune import prune


def most_allocated(work) -> int:
    """Bytes that torch has at the same time in the course of some work, beside those that it had before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    blocks = [each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]"]
    most = now = 0
    for each in sorted(blocks, key=lambda each: each.start_ns()):
        now += each.nbytes()
        most = max(most, now)
    return most


def test_the_blocks_of_a_sum_are_counted():
    a = torch.ones(1000)
    assert 8000 <= most_allocated(lambda: (a + 1) + (a + 2)) < 16_000


@pytest.mark.parametrize("asked", [{"params": 0.75}, {"heads": 8, "neurons": 256}])
def test_no_second_copy_of_the_weights_and_no_weight_for_each_width_is_kept(asked, monkeypatch):
    # of a model that is large beside what the sums of any may have
    monkeypatch.setattr("headgates.analysis.scores.site_statistics.FEW_BYTES", 0)
    torch.manual_seed(0)
    model = transformers.BertForTokenClassification(
        transformers.BertConfig(
            vocab_size=31,
            num_labels=31,
            hidden_size=128,
            intermediate_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=16,
            initializer_range=0.2,
        )
    ).eval()
    words = torch.randint(3, 31, (4, 2, 7), generator=torch.Generator().manual_seed(1))
    batches = [{"input_ids": each, "labels": each} for each in words]
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    # 1.1 as this is written: half of them as sums, and activations, which are large beside so small a model
    assert most_allocated(lambda: prune(model, batches, layers=False, **asked)) < 1.25 * weights

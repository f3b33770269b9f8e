"""Outputs kept before a layer: the loss of every change of that layer is that of whole passes."""

import pytest
import torch
import transformers

from headgates.analysis.batches import batch_loss
from headgates.analysis.levels import text_loss
from headgates.planning.prefix import KeptOutputs

SMALL = dict(vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=3, num_decoder_layers=3, num_heads=2)


@pytest.fixture
def t5():
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(**SMALL, decoder_start_token_id=0)
    ).eval()


def text(sentences: int) -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(sentences)
    return [
        {name: torch.randint(3, 32, (2, 7), generator=draw) for name in ("input_ids", "labels")}
        for _ in range(sentences)
    ]


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_change_in_a_layer_gives_the_loss_of_a_whole_pass(t5, stack):
    batches, calls = text(3), []
    kept = KeptOutputs(t5, batches, batch_loss)
    whole = text_loss(t5, batches, batch_loss)
    layers = getattr(t5, stack).block
    layers[0].layer[0].register_forward_hook(lambda *_: calls.append(stack))
    with torch.no_grad():
        layers[1].layer[-1].DenseReluDense.wo.weight.mul_(3)
    changed = text_loss(t5, batches, batch_loss)
    assert changed != whole
    calls.clear()
    with torch.no_grad():
        layers[1].layer[-1].DenseReluDense.wo.weight.div_(3)
    with kept.before(stack, 1):
        assert len(calls) == 3  # one pass, in which what lies before is kept
        assert text_loss(t5, batches, batch_loss) == pytest.approx(whole)
        with torch.no_grad():
            layers[1].layer[-1].DenseReluDense.wo.weight.mul_(3)
        assert text_loss(t5, batches, batch_loss) == pytest.approx(changed)
        assert len(calls) == 3  # the first layer did not run again
    with kept.before(stack, 2):  # kept anew, behind the change
        assert text_loss(t5, batches, batch_loss) == pytest.approx(changed)
    other = text(1)
    assert text_loss(t5, other, batch_loss) == pytest.approx(t5(**other[0]).loss.item() * 14)


def test_layers_that_run_twice_in_a_pass_are_computed_each_time():
    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        vocab_size=32,
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
    )
    model = transformers.AlbertForTokenClassification(config).eval()
    batches = [{**each, "labels": each["labels"] % 2} for each in text(2)]
    whole = text_loss(model, batches, batch_loss)
    with KeptOutputs(model, batches, batch_loss).before("encoder", 1):
        assert text_loss(model, batches, batch_loss) == pytest.approx(whole)

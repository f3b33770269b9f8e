"""The effect of each head on each sentence, against the loss with the head's columns of W_O at zero."""

import pytest
import torch

from headgates.analysis.batches import batch_loss, sites_of
from headgates.analysis.scores.loss_without import loss_without
from headgates.analysis.sentence_effects import sentence_effects
from headgates.gates import HeadMap, attach
from headgates.tasks import task_named
from tests.analysis.one_by_one import assert_equal, in_batches, random_model, random_pairs

PAIRS = random_pairs()[:7]
LOSSES = task_named("translation").losses


@torch.no_grad()
def test_each_effect_is_that_of_the_columns_of_w_o_at_zero_on_that_sentence_alone():
    model = random_model().double()
    effects, numbers = sentence_effects(model, in_batches(PAIRS, 3), losses=LOSSES)
    singly = in_batches(PAIRS, 1)
    alone = {int(batch.index[0]): batch for batch in singly}
    for site, module in sites_of(model, None).items():
        for head, columns in enumerate(module.out_proj.weight.unflatten(1, (site.heads, -1)).unbind(1)):
            whole = torch.stack([batch_loss(model, alone[int(number)]) for number in numbers])
            before = columns.clone()
            columns.zero_()
            without = torch.stack([batch_loss(model, alone[int(number)]) for number in numbers])
            columns.copy_(before)
            torch.testing.assert_close(effects[site][head], without - whole)
    mean = HeadMap({site: rows.mean(1) for site, rows in effects.items()})
    assert_equal(mean, loss_without(model, in_batches(PAIRS, 3)))


def test_a_model_with_gates_and_no_batch_at_all_are_refused_and_the_model_is_left_as_it_was():
    model = random_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match="at least one batch"):
        sentence_effects(model, [], losses=LOSSES)
    assert model.state_dict().keys() == before.keys()
    attach(model, gate="mask")
    with pytest.raises(ValueError, match="gates"):
        sentence_effects(model, in_batches(PAIRS, 3), losses=LOSSES)

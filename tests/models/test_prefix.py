"""States kept before a layer: the loss of every change of that layer is that of whole passes."""

from types import SimpleNamespace

import pytest
import torch

from headgates.models.prefix import KeptStates
from tests.worlds.searched_model import random_model


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_change_in_a_layer_gives_the_states_of_a_whole_pass(make_model, stack, norm):
    model = random_model(make_model, encoder_layers=3, decoder_layers=3, norm=norm).eval()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 17, (3, 2, 5, 7), generator=generator)
    *batches, other = (SimpleNamespace(source=source, target_in=target) for source, target in ids)

    def run(batch):
        return model.decode(*model.encode(batch.source), batch.target_in)

    kept = KeptStates(model, batches, run)
    with torch.no_grad():
        whole = [run(batch) for batch in batches]
        getattr(model, stack).layers[1].feed_forward.outer.weight.mul_(3)
        expected = [run(batch) for batch in [*batches, other]]
        assert not torch.allclose(whole[0], expected[0])
        with kept.before(stack, 1):
            found = [run(batch) for batch in [*batches, other]]
        with kept.before(stack, 2):  # behind the change, which is not seen
            unseen = run(batches[0])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(unseen, whole[0])
    torch.testing.assert_close(run(batches[0]), expected[0])

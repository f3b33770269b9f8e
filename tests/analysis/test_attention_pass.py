"""What observers are shown, and that the model does not notice."""

import pytest
import torch

from headgates.analysis.attention_pass import AttentionBatch, check_exclude, observe_attention
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import HeadMap, HeadSite, find_sites, remove
from tests.analysis.one_by_one import VOCAB, in_batches, looks, random_model, random_pairs
from tests.worlds.seen_attention import seen_attention

PAD = SpecialTokens().padding


class Keep:
    def __init__(self) -> None:
        self.seen: list[AttentionBatch] = []

    def add(self, seen: AttentionBatch) -> None:
        self.seen.append(seen)


def shown(model, batches, **options) -> list[AttentionBatch]:
    keep = Keep()
    observe_attention(model, batches, [keep], **options)
    return keep.seen


def test_every_observer_sees_every_batch_with_the_weights_of_a_plain_forward():
    model, batches = random_model(), in_batches(random_pairs(), 3)
    first, second = Keep(), Keep()
    observe_attention(model, batches, [first, second])
    assert [seen.batch.index.tolist() for seen in first.seen] == [batch.index.tolist() for batch in batches]
    assert all(one is two for one, two in zip(first.seen, second.seen, strict=True))
    for seen, batch in zip(first.seen, batches, strict=True):
        plain = {}
        with torch.no_grad():
            model(batch.source, batch.target_in, plain)
        for site, weights in seen.weights.items():
            queries = (batch.source if site.kind == "enc-self" else batch.target_in) != PAD
            assert weights.dtype == torch.float32
            torch.testing.assert_close(
                weights.transpose(1, 2)[queries], plain[site.name].transpose(1, 2)[queries], rtol=0, atol=0
            )


def test_padding_has_no_weight_as_a_key_or_as_a_query():
    for seen in shown(random_model(), in_batches(random_pairs(), 8)):
        source, target = seen.batch.source == PAD, seen.batch.target_in == PAD
        assert source.any()
        assert target.any()
        for site, weights in seen.weights.items():
            queries, keys = (
                (source if site.kind == "enc-self" else target),
                (target if site.kind == "dec-self" else source),
            )
            assert (weights.transpose(1, 2)[queries] == 0).all()
            assert (weights.permute(0, 3, 1, 2)[keys] == 0).all()
            totals = weights.sum(3).transpose(1, 2)[~queries]
            torch.testing.assert_close(totals, torch.ones_like(totals))


def test_only_the_kinds_asked_for_are_shown_and_the_decoder_rests_for_the_encoder_alone(monkeypatch):
    model, batches = random_model(), in_batches(random_pairs(), 8)
    assert {site.kind for site in shown(model, batches, kinds=["cross", "enc-self"])[0].weights} == {
        "cross",
        "enc-self",
    }
    monkeypatch.setattr(type(model), "decode", None)
    assert {site.kind for site in shown(model, batches, kinds=["enc-self"])[0].weights} == {"enc-self"}


@pytest.mark.parametrize("broken", [False, True])
def test_the_model_is_left_as_it_was_even_by_an_observer_that_fails(broken):
    model = random_model().train()
    model.encoder.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    class Observer:
        def add(self, seen: AttentionBatch) -> None:
            assert not any(module.training for module in model.modules())
            if broken:
                raise RuntimeError("the disk is full")

    if broken:
        with pytest.raises(RuntimeError, match="the disk is full"):
            observe_attention(model, in_batches(random_pairs(), 3), [Observer()])
    else:
        observe_attention(model, in_batches(random_pairs(), 3), [Observer()])
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters() if parameter.numel())


def test_a_model_whose_positions_grew_while_recording_can_still_be_trained():
    model = random_model()
    observe_attention(model, in_batches([(list(range(4, 24)) * 20, [5])], 1), [Keep()])
    batch = in_batches(random_pairs(), 8)[0]
    model.train()(batch.source, batch.target_in).sum().backward()
    assert model.output.weight.grad is not None


def test_no_batch_is_refused():
    with pytest.raises(ValueError, match="got no batch"):
        observe_attention(random_model(), iter(()), [Keep()])


def test_kinds_without_a_head_and_unknown_kinds_are_refused():
    model = random_model()
    remove(model, HeadMap({site: [True] * site.heads for site in find_sites(model) if site.kind == "cross"}))
    with pytest.raises(ValueError, match="no heads of the kinds cross"):
        observe_attention(model, in_batches(random_pairs(), 3), [Keep()], kinds=["cross"])
    with pytest.raises(ValueError, match="did you mean 'cross'"):
        observe_attention(model, in_batches(random_pairs(), 3), [Keep()], kinds=["crosss"])


@pytest.mark.parametrize("exclude", ["both", "query", "key", "none"])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_the_strongest_keys_are_those_of_one_sentence_and_one_query_at_a_time(exclude, size):
    model, pairs = random_model(), random_pairs()
    slow = {(look.site, look.head, look.pair, look.query): look for look in looks(model, pairs, exclude)}
    found = 0
    for seen in shown(model, in_batches(pairs, size)):
        for site in seen.weights:
            strongest = seen.strongest(site, exclude)
            assert seen.strongest(site, exclude) is strongest
            numbers = seen.batch.index[strongest.pair].tolist()
            for n, (pair, query) in enumerate(zip(numbers, strongest.query.tolist(), strict=True)):
                for head in range(site.heads):
                    look = slow[site.name, head, pair, query]
                    assert int(strongest.key[n, head]) == look.argmax
                    assert float(strongest.weight[n, head]) == pytest.approx(
                        max(look.keys.values()), rel=1e-5
                    )
                    found += 1
    assert found == len(slow)


def test_the_first_of_equal_weights_is_the_strongest_and_a_weight_of_zero_is_never_padding():
    batch = in_batches([([5, 6, 7], [5]), ([VOCAB - 1], [5])], 2)[0]  # sources (2, 4)
    site = HeadSite.at("enc-self", 0, 1)
    weights = torch.tensor(
        [
            [[[0.2, 0.3, 0.3, 0.2], [0.0, 0.0, 0.0, 1.0]] + [[0.25] * 4] * 2],
            [[[0.0, 1.0, 0, 0]] * 2 + [[0.0] * 4] * 2],
        ]
    )
    seen = seen_attention(batch, {site: weights})
    assert seen.strongest(site, "both").key.flatten().tolist() == [1, 0, 0, 0]
    assert seen.strongest(site, "none").key.flatten().tolist() == [1, 3, 0, 0, 1, 1]


def test_where_all_weight_is_on_the_beginning_the_strongest_is_still_a_token():
    site = HeadSite.at("dec-self", 0, 1)
    batch = in_batches([([5], [5, 6])], 1)[0]  # the decoder reads the beginning, 5, 6
    seen = seen_attention(batch, {site: torch.tensor([[[[1.0, 0, 0]] * 3]])})
    assert seen.strongest(site, "both").key.tolist() == [[1], [1]]
    assert seen.strongest(site, "both").query.tolist() == [1, 2]
    assert seen.strongest(site, "query").key.tolist() == [[0], [0]]


def test_an_unknown_reading_is_refused_with_the_nearest():
    assert check_exclude("key") == "key"
    with pytest.raises(ValueError, match="did you mean 'query'"):
        check_exclude("querys")

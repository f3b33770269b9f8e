"""What observers are shown, and that the model does not notice; confidence, the simplest of them; models that
are not ours."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from headgates.analysis.attention_pass import AttentionBatch, observe_attention
from headgates.analysis.confidence import Confidence, confidence
from headgates.data.batch import collate
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import HeadMap, HeadSite, find_sites, remove
from tests.gates.family_checks import generated
from tests.worlds.families import BY_NAME
from tests.worlds.one_by_one import (
    VOCAB,
    assert_equal,
    in_batches,
    looks,
    mean_map,
    random_model,
    random_pairs,
)
from tests.worlds.seen_attention import seen_attention

PAD = SpecialTokens().padding
BATCHES = in_batches(random_pairs(), 3)


def shown(model, batches=BATCHES, **options) -> list[AttentionBatch]:
    seen: list[AttentionBatch] = []
    observe_attention(model, batches, [SimpleNamespace(add=seen.append)] * 2, **options)
    assert seen[::2] == seen[1::2], "every observer sees the same"
    return seen[::2]


def test_every_batch_is_shown_with_the_weights_of_a_plain_forward_and_none_at_padding():
    model = random_model()
    for seen, batch in zip(shown(model), BATCHES, strict=True):
        assert torch.equal(seen.batch.index, batch.index)
        plain, real = {}, {"source": batch.source != PAD, "target": batch.target_in != PAD}
        with torch.no_grad():
            model(batch.source, batch.target_in, plain)
        for site, weights in seen.weights.items():
            queries = real["source" if site.kind == "enc-self" else "target"]
            keys = real["target" if site.kind == "dec-self" else "source"]
            assert torch.equal(weights, plain[site.name] * queries[:, None, :, None])
            assert not weights.transpose(1, 3)[~keys].any()


def test_the_decoder_rests_where_encoder_heads_alone_are_asked_for(monkeypatch):
    model = random_model()
    monkeypatch.setattr(type(model), "decode", None)
    assert {site.kind for site in shown(model, kinds=["enc-self"])[0].weights} == {"enc-self"}


def test_dropout_rests_meanwhile_and_comes_back_even_after_an_observer_that_fails():
    model = random_model().train()
    model.encoder.eval()
    modes = [module.training for module in model.modules()]

    def fail(seen: AttentionBatch) -> None:
        assert not any(module.training for module in model.modules())
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        observe_attention(model, BATCHES, [SimpleNamespace(add=fail)])
    assert [module.training for module in model.modules()] == modes


def test_what_cannot_be_observed_is_refused():
    model = random_model()
    with pytest.raises(ValueError, match="got no batch"):
        shown(model, [])
    remove(model, HeadMap({site: [True] * site.heads for site in find_sites(model) if site.kind == "cross"}))
    with pytest.raises(ValueError, match="no heads of the kinds cross"):
        shown(model, kinds=["cross"])


def test_the_first_of_equal_weights_is_the_strongest_and_never_padding_or_what_is_no_token():
    batch = in_batches([([5, 6, 7], [5, 6]), ([VOCAB - 1], [5])], 2)[0]  # sources (2, 4), targets (2, 3)
    first = [[0.2, 0.3, 0.3, 0.2], [0.0, 0.0, 0.0, 1.0], [0.25] * 4, [0.25] * 4]
    second = [[0.0, 1.0, 0.0, 0.0]] * 2 + [[0.0] * 4] * 2
    weights, reads = torch.tensor([[first], [second]]), torch.zeros(2, 1, 3, 3)
    reads[..., 0] = 1.0  # all weight is on the beginning
    site, decoder = HeadSite.at("enc-self", 0, 1), HeadSite.at("dec-self", 0, 1)
    seen = seen_attention(batch, {site: weights, decoder: reads})
    for at, exclude, keys in (
        (site, "both", [1, 0, 0, 0]),
        (site, "none", [1, 3, 0, 0, 1, 1]),
        (decoder, "both", [1, 1, 1]),
        (decoder, "query", [0, 0, 0]),
    ):
        assert seen.strongest(at, exclude).key.flatten().tolist() == keys
    assert seen.strongest(decoder).query.tolist() == [1, 2, 1]


def test_confidence_is_the_mean_over_tokens_of_the_largest_weight():
    model, pairs, values = random_model(), random_pairs(), defaultdict(list)
    for look in looks(model, pairs):
        values[look.site, look.head].append(max(look.keys.values()))
    observer = Confidence()
    for batch in in_batches(pairs, 3):  # in several passes
        observe_attention(model, [batch], [observer])
    assert_equal(observer.head_map(), mean_map(values))
    assert_equal(confidence(model, BATCHES), observer.head_map())


def test_the_beginning_stays_a_key_where_the_first_piece_is_forced():
    """No query asks for that piece, but the decoder's other positions look at the beginning."""
    forced = SpecialTokens(forced=(4,))
    model = random_model()
    model.target_specials = forced
    batch = collate([([5, 6], [4, 7, 8])], [0], 1, target_specials=forced)
    (seen,) = shown(model, [batch])
    site = next(site for site in seen.weights if site.kind == "dec-self")
    assert seen.visible("dec-self", "query").sum(2).tolist() == [[0, 0, 3, 4]]
    assert seen.visible("dec-self", "none").sum(2).tolist() == [[1, 2, 3, 4]]
    torch.testing.assert_close(seen.weights[site].sum(3), torch.ones(1, site.heads, 4))


# --- models that are not ours


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "T5"])
def test_attention_of_hugging_faces_models_is_what_they_output(name):
    model = BY_NAME[name].model()
    model.set_attn_implementation("eager")
    ids, labels = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]]), torch.tensor([[4, 5, 1], [7, 1, -100]])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    batch |= {"labels": labels} if name == "T5" else {}
    (seen,) = shown(model, [batch], special_ids=[8])
    output = model(**batch, output_attentions=True)
    named = {"enc-self": "encoder_attentions", "dec-self": "decoder_attentions", "cross": "cross_attentions"}
    for site, weights in seen.weights.items():
        theirs = output[named[site.kind] if name == "T5" else "attentions"][site.layer]
        real = ids != 0 if site.kind == "enc-self" or name != "T5" else labels != -100  # (B, L)
        torch.testing.assert_close(weights, theirs * real[:, None, :, None])
    kind = "dec-self" if name == "GPT-2" else "enc-self"
    assert seen.visible(kind, "none").any(2).sum() == 6
    assert seen.visible(kind, "query").any(2).sum() == 5  # but for the special one
    if name == "T5":
        assert seen.visible("cross", "none").any(2).tolist() == (labels != -100).tolist()


@pytest.mark.slow
def test_confidence_leaves_special_tokens_of_hugging_faces_models_out():
    model = BY_NAME["BERT"].model()
    model.set_attn_implementation("eager")
    batch = {"input_ids": torch.tensor([[1, 6, 7, 2]])}
    found = confidence(model, [batch], special_ids=[1, 2], kinds=["enc-self"])
    for site, weights in zip(found, model(**batch, output_attentions=True).attentions, strict=True):
        torch.testing.assert_close(found[site].float(), weights[0, :, 1:3, 1:3].amax(2).mean(1))


@pytest.mark.slow
def test_the_decoder_of_a_classifier_is_observed_over_the_source():
    config = transformers.BartConfig(
        vocab_size=23, d_model=12, encoder_layers=1, decoder_layers=1, encoder_attention_heads=3,
        decoder_attention_heads=3, encoder_ffn_dim=7, decoder_ffn_dim=7, num_labels=2,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = transformers.BartForSequenceClassification(config).eval()
    ids = torch.tensor([[0, 5, 6, 2], [0, 9, 2, 1]])
    batch = {"input_ids": ids, "attention_mask": (ids != 1).long(), "labels": torch.tensor([0, 1])}
    (seen,) = shown(model, [batch])
    assert seen.batch.target_in.tolist() == [[2, 0, 5, 6], [2, 0, 9, 2]]
    output = model(**batch, output_attentions=True)
    (cross,) = (site for site in seen.weights if site.kind == "cross")
    real = (ids != 1)[:, None, :, None]
    torch.testing.assert_close(seen.weights[cross], output.cross_attentions[0] * real)


def test_heads_of_whisper_are_as_confident_as_its_own_weights_say_and_it_generates_without_some():
    model = BY_NAME["Whisper"].model()
    model.set_attn_implementation("eager")
    sound = BY_NAME["Whisper"].batch(2)["input_features"]
    batch = {"input_features": sound, "attention_mask": torch.ones(2, sound.shape[2]).long()}
    batch["labels"] = torch.tensor([[4, 5, 1], [7, 1, -100]])
    found, output = confidence(model, [batch]), model(**batch, output_attentions=True)
    named = {"enc-self": "encoder_attentions", "cross": "cross_attentions"}
    for site in (site for site in found if site.kind in named):
        largest = output[named[site.kind]][site.layer].amax(3).transpose(1, 2)  # (B, L, H)
        real = torch.ones(2, largest.shape[1]).bool() if site.kind == "enc-self" else batch["labels"] != -100
        torch.testing.assert_close(found[site].float(), largest[real].mean(0), check_device=False)
    assert {site.kind for site in found} == {"enc-self", "dec-self", "cross"}
    remove(model, found.lowest(7))
    assert generated(BY_NAME["Whisper"], model).shape[0] == 2


class Encoder(nn.Module):
    """Of torch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, layer = nn.Embedding(11, 12), nn.TransformerEncoderLayer(12, 3, 7, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.embedding(input_ids))


@pytest.mark.slow
def test_attention_of_torchs_own_is_observed_and_what_has_none_is_named():
    model, batch = Encoder().eval(), {"input_ids": torch.tensor([[5, 6, 7, 8]])}
    seen = shown(model, [batch, batch])
    assert [each.batch.index.tolist() for each in seen] == [[0], [1]]
    x = model.embedding(batch["input_ids"])
    expected = model.encoder.layers[0].self_attn(x, x, x, average_attn_weights=False)[1]
    torch.testing.assert_close(next(iter(seen[0].weights.values())), expected)
    with pytest.raises(ValueError, match="expected input_ids, the batch has"):
        shown(model, [{"pixels": torch.ones(2)}])
    for name in ("BERT", "T5"):
        fused = BY_NAME[name].model()
        fused.set_attn_implementation("sdpa")
        with pytest.raises(ValueError, match=r"encoder\.0\.enc-self: .* attn_implementation='eager'"):
            shown(fused, [batch | {"labels": batch["input_ids"]}])

"""Which labels of a batch have a loss, and which targets are drawn for it."""

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from headgates.analysis.batches import batch_loss, known_tokens, predicts_next, query_tokens, sampled_targets
from headgates.analysis.scores.exact_effects import exact_effects
from headgates.analysis.scores.importance import importance
from headgates.analysis.scores.obs import obs
from headgates.gates import find_sites

SMALL = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
IDS = torch.randint(3, 64, (4, 9), generator=torch.Generator().manual_seed(0))


def llama(cls, **more):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=4, pad_token_id=0, **more)
    return cls(config).eval()


def sure(model, layer: str):
    """Its drawn targets are its best ones."""
    model.get_submodule(layer).weight.data.mul_(1e5)
    return model


def test_a_classifier_made_of_a_decoder_labels_the_word_itself():
    model = sure(llama(transformers.LlamaForTokenClassification, num_labels=5), "score")
    batch = {"input_ids": IDS, "labels": torch.randint(0, 5, IDS.shape)}
    drawn = sampled_targets(model, batch, torch.Generator().manual_seed(0))["labels"]
    assert torch.equal(drawn, model(**batch).logits.argmax(-1))
    first = torch.full_like(IDS, -100)
    first[:, 0] = 1
    batch = {"input_ids": IDS, "labels": first}
    assert batch_loss(model, batch).item() == pytest.approx(4 * model(**batch).loss.item())


def test_a_decoder_of_words_labels_the_next_one():
    model = sure(llama(transformers.LlamaForCausalLM), "lm_head")
    batch = {"input_ids": IDS, "labels": IDS}
    drawn = sampled_targets(model, batch, torch.Generator().manual_seed(0))["labels"]
    assert torch.equal(drawn[:, 1:], model(**batch).logits.argmax(-1)[:, :-1])
    assert batch_loss(model, batch).item() == pytest.approx(4 * 8 * model(**batch).loss.item())


def test_a_decoder_beside_an_encoder_of_images_labels_the_next_word():
    sizes = {name: size for name, size in SMALL.items() if name != "vocab_size"} | dict(
        image_size=8, patch_size=4
    )
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**sizes),
        text_config=transformers.LlamaConfig(**SMALL, num_key_value_heads=4, pad_token_id=0),
        image_token_index=63,
        vision_feature_layer=-1,
    )
    model = sure(transformers.LlavaForConditionalGeneration(config).eval(), "lm_head")
    ids = IDS.clamp(max=62)
    ids[:, 1:5] = 63
    batch = {"input_ids": ids, "labels": ids, "pixel_values": torch.randn(4, 3, 8, 8)}
    drawn = sampled_targets(model, batch, torch.Generator().manual_seed(0))["labels"]
    assert torch.equal(drawn[:, 1:], model(**batch).logits.argmax(-1)[:, :-1])
    assert batch_loss(model, batch).item() == pytest.approx(4 * 8 * model(**batch).loss.item())


def test_half_precision_rounds_the_weights_and_not_the_loss():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    batches = [{"input_ids": IDS, "labels": IDS.flip(0)}] * 2
    whole = exact_effects(model, batches).flat()
    halves = exact_effects(model.bfloat16(), batches).flat()
    off = (halves - whole).square().mean().sqrt() / whole.square().mean().sqrt()
    assert off < 0.1  # 1.0 where the loss is rounded too


@pytest.mark.parametrize("family", ["t5", "bart", "whisper"])
def test_targets_that_are_drawn_leave_the_decoder_the_words_that_it_was_given(family):
    torch.manual_seed(0)
    sizes = dict(vocab_size=64, d_model=32, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    layers = dict(encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4)
    if family == "t5":
        config = transformers.T5Config(**sizes, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
        model = transformers.T5ForConditionalGeneration(config).eval()
    elif family == "bart":
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **layers)).eval()
    else:
        sizes |= dict(bos_token_id=2, max_source_positions=9, num_mel_bins=4)
        model = transformers.WhisperForConditionalGeneration(
            transformers.WhisperConfig(**sizes, **layers, encoder_ffn_dim=64, decoder_ffn_dim=64)
        ).eval()
    labels = IDS.clone()
    labels[0, 6:] = -100
    batch = {"labels": labels}
    batch |= {"input_features": torch.randn(4, 4, 18)} if family == "whisper" else {"input_ids": IDS.flip(1)}
    drawn = sampled_targets(model, batch, torch.Generator().manual_seed(0))
    shifted = torch.cat([torch.zeros(4, 1, dtype=torch.long), labels[:, :-1].clamp(min=0)], 1)
    assert torch.equal(drawn["decoder_input_ids"], shifted)
    assert not torch.equal(drawn["labels"], labels)
    assert torch.equal(drawn["labels"] == -100, labels == -100)
    decoder = next(site for site in find_sites(model) if site.in_decoder)
    assert torch.equal(query_tokens(model, decoder, drawn), labels != -100)
    given = {**batch, "decoder_input_ids": shifted}
    assert obs(model, [batch], queries=known_tokens) == obs(model, [given], queries=known_tokens)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_loss_of_ctc_is_summed_over_the_sentences(reduction):
    sizes = dict(conv_dim=(16, 16), conv_stride=(5, 4), conv_kernel=(10, 4), num_feat_extract_layers=2)
    sizes |= dict(num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, ctc_loss_reduction=reduction)
    model = transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**(SMALL | sizes))).eval()
    labels = torch.tensor([[1, 2, 3], [4, 5, -100], [6, -100, -100]])
    sounds = torch.randn(3, 800)
    each = [{"input_values": sounds[i : i + 1], "labels": labels[i : i + 1]} for i in range(3)]
    whole = batch_loss(model, {"input_values": sounds, "labels": labels}).item()
    assert whole == pytest.approx(sum(batch_loss(model, one).item() for one in each), rel=1e-4)
    model.config.ctc_loss_reduction = "sum"
    assert whole == pytest.approx(model(input_values=sounds, labels=labels).loss.item())


def test_points_of_an_image_without_a_class_do_not_count():
    sizes = dict(
        num_labels=4, depths=[1] * 4, hidden_sizes=[16, 32, 32, 32], num_attention_heads=[1, 2, 4, 4]
    )
    config = transformers.SegformerConfig(**sizes, decoder_hidden_size=16)
    model = transformers.SegformerForSemanticSegmentation(config).eval()
    labels = torch.full((2, 64, 64), config.semantic_loss_ignore_index)
    labels[:, :32, :32] = 1
    batch = {"pixel_values": torch.randn(2, 3, 64, 64), "labels": labels}
    assert batch_loss(model, batch).item() == pytest.approx(2 * 32 * 32 * model(**batch).loss.item())


def test_labels_that_are_no_classes_of_the_logits_stay():
    sizes = dict(conv_dim=(16, 16), conv_stride=(5, 4), conv_kernel=(10, 4), num_feat_extract_layers=2)
    config = transformers.Wav2Vec2Config(
        **(SMALL | sizes), num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2
    )
    batch = {"input_values": torch.randn(4, 800), "labels": torch.randint(1, 30, (4, 5))}
    model = transformers.Wav2Vec2ForCTC(config).eval()
    assert sampled_targets(model, batch, torch.Generator().manual_seed(0)) is batch


@pytest.mark.parametrize("score", [exact_effects, importance])
def test_a_batch_without_a_label_that_counts_is_refused(score):
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SMALL))
    batches = [{"input_ids": IDS, "labels": each} for each in (IDS, torch.full_like(IDS, -100))]
    with pytest.raises(ValueError, match="all labels of a batch are -100, so it has no loss"):
        score(model, batches)


@pytest.mark.parametrize("batches", [[(IDS, IDS)], {"input_ids": IDS}])
def test_batches_that_are_none_are_refused_by_a_score(batches):
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SMALL))
    with pytest.raises(
        ValueError, match=r"expected batches that are mappings, got a (tuple|str); a batch maps"
    ):
        importance(model, batches)


def test_a_decoder_that_stands_in_what_is_called_an_encoder_labels_the_next_word():
    torch.manual_seed(0)
    config = transformers.RoFormerConfig(**SMALL, is_decoder=True, embedding_size=SMALL["hidden_size"])
    model = transformers.RoFormerForCausalLM(config).eval()
    loss = batch_loss(model, {"input_ids": IDS, "labels": IDS})
    assert loss.item() == pytest.approx(4 * 8 * model(input_ids=IDS, labels=IDS).loss.item())


def test_words_that_attend_to_each_other_both_ways_are_followed_by_an_answer():
    sizes = {name: size for name, size in SMALL.items() if name != "vocab_size"} | dict(image_size=8)
    with torch.device("meta"):
        model = transformers.PaliGemmaForConditionalGeneration(
            transformers.PaliGemmaConfig(
                vision_config=transformers.SiglipVisionConfig(**sizes, patch_size=4).to_dict(),
                text_config=transformers.GemmaConfig(**SMALL, num_key_value_heads=1, head_dim=8).to_dict(),
            )
        )
    assert predicts_next(model)


class OwnModel(transformers.PreTrainedModel):
    """A causal model of one's own, whose class does not say that it can generate."""

    config_class, _supports_sdpa = transformers.LlamaConfig, True

    def __init__(self, config):
        super().__init__(config)
        self.inner = transformers.LlamaForCausalLM(config)

    def get_output_embeddings(self):
        return self.inner.lm_head


def test_labels_that_a_decoder_does_not_shift_are_all_counted():
    torch.manual_seed(0)
    sizes = dict(vocab_size=64, d_model=32, decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=64)
    model = transformers.BartForCausalLM(transformers.BartConfig(**sizes)).eval()
    loss = batch_loss(model, {"input_ids": IDS, "labels": IDS})
    logits = model(input_ids=IDS).logits
    assert loss.item() == pytest.approx(
        cross_entropy(logits.flatten(0, 1), IDS.flatten(), reduction="sum").item()
    )


def test_labels_are_of_the_next_word_by_what_a_model_says_and_what_it_is():
    assert predicts_next(OwnModel(llama(transformers.LlamaForCausalLM).config))
    sizes = {name: size for name, size in SMALL.items() if name != "vocab_size"} | dict(num_mel_bins=8)
    encoder = transformers.ParakeetEncoderConfig(**sizes, num_key_value_heads=4, subsampling_conv_channels=8)
    with torch.device("meta"):
        model = transformers.ParakeetForCTC(
            transformers.ParakeetCTCConfig(vocab_size=64, encoder_config=encoder.to_dict(), pad_token_id=0)
        )
    assert not predicts_next(model)

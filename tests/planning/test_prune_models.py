"""Models whose arguments, positions or labels differ from those of the usual ones are pruned as they are."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import transformers as tf
from torch import nn
from torch.nn.functional import cross_entropy

from headgates.analysis.scores.importance import importance
from headgates.gates import Subnet, load_pruned, save_pruned
from headgates.planning.cost_table import cost_table, parameters
from headgates.planning.prune import prune

SMALL = dict(vocab_size=64, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64)
SIZES_OF_IMAGES = {name: SMALL[name] for name in SMALL if name != "vocab_size"}
LAYERS = dict(encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4)


def words(*shape: int) -> torch.Tensor:
    return torch.randint(3, 64, shape)


def of_words(**more) -> dict[str, torch.Tensor]:
    return {"input_ids": (ids := words(4, 9)), "labels": ids.clone(), **more}


def of_classes() -> dict[str, torch.Tensor]:
    ids = torch.cat([words(4, 8), torch.ones(4, 1, dtype=torch.long)], 1)  # the last is the end of a sentence
    return {"input_ids": ids, "labels": torch.randint(0, 3, (4,))}


def opt():
    sizes = dict(ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=64)
    return tf.OPTForCausalLM(tf.OPTConfig(**(SMALL | sizes)))


def bert_as_decoder():
    return tf.BertLMHeadModel(tf.BertConfig(**SMALL, is_decoder=True))


def t5_for_classes():
    sizes = dict(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, num_labels=3)
    return tf.T5ForSequenceClassification(tf.T5Config(**sizes, decoder_start_token_id=0))


def bart_for_classes():
    sizes = dict(vocab_size=64, d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64, num_labels=3, **LAYERS)
    special = dict(eos_token_id=1, pad_token_id=0, max_position_embeddings=64)
    return tf.BartForSequenceClassification(tf.BartConfig(**sizes, **special))


def for_choices():
    return tf.BertForMultipleChoice(tf.BertConfig(**SMALL))


def segformer():
    sizes = dict(
        num_labels=4, depths=[1] * 4, hidden_sizes=[16, 32, 32, 32], num_attention_heads=[1, 2, 4, 4]
    )
    return tf.SegformerForSemanticSegmentation(tf.SegformerConfig(**sizes, decoder_hidden_size=16))


def with_two_labels():
    return tf.BertForPreTraining(tf.BertConfig(**SMALL))


MODELS = {
    "OPT": (opt, of_words),
    "BERT as a decoder": (bert_as_decoder, of_words),
    "T5 for classes": (t5_for_classes, of_classes),
    "BART for classes": (bart_for_classes, of_classes),
    "BERT for choices": (
        for_choices,
        lambda: {"input_ids": words(4, 3, 7), "labels": torch.randint(0, 3, (4,))},
    ),
    "BERT with two labels": (with_two_labels, lambda: of_words(next_sentence_label=torch.zeros(4).long())),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_heads_and_neurons_that_were_asked_for_stay(name):
    torch.manual_seed(0)
    model, batch = MODELS[name][0](), MODELS[name][1]
    batches = [batch() for _ in range(4)]
    found = prune(model, batches, heads=8, neurons=64)
    assert found.subnet.words.startswith("8 of ")
    assert sum(int(row.sum()) for row in Subnet.of(model).units.values()) == 8 + 64
    assert torch.isfinite(torch.tensor(found.loss)).all()
    assert importance(model, batches, kinds="all").sum() > 0


def test_what_a_layer_gives_may_be_read_by_more_than_the_next():
    model = segformer()
    batches = [
        {"pixel_values": torch.randn(2, 3, 64, 64), "labels": torch.randint(0, 4, (2, 64, 64))}
        for _ in range(4)
    ]
    assert prune(model, batches, heads=8).subnet.words.startswith("8 of 11 heads")


def test_a_head_that_pools_an_image_has_no_words():
    text = dict(SMALL, max_position_embeddings=64, projection_size=32)
    image = {name: SMALL[name] for name in SMALL if name != "vocab_size"} | dict(image_size=32, patch_size=8)
    model = tf.SiglipModel(tf.SiglipConfig(text_config=text, vision_config=image))
    batches = [
        {"input_ids": (ids := words(4, 9)), "attention_mask": torch.ones_like(ids), "return_loss": True}
        | {"pixel_values": torch.randn(4, 3, 32, 32)}
        for _ in range(4)
    ]
    prune(model, batches, heads=14, loss=lambda model, batch: 4 * model(**batch).loss)
    assert sum(int(row.sum()) for site, row in Subnet.of(model).units.items() if "ffn" not in site.kind) == 14


class Tagger(nn.Module):
    """nn.Transformer, with names of its own."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(64, 32)
        self.both = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)
        self.out = nn.Linear(32, 64)

    def forward(self, src, tgt):
        return self.out(self.both(self.words(src), self.words(tgt)))


@pytest.mark.parametrize("choose", ["plan", "importance"])
def test_a_model_of_torch_with_names_of_its_own(choose):
    def loss(model, batch):
        said = model(batch["src"], batch["tgt"]).flatten(0, 1)
        return cross_entropy(said, batch["tgt"].flatten(), reduction="sum")

    found = prune(
        Tagger(),
        [{"src": words(4, 9), "tgt": words(4, 7)} for _ in range(4)],
        heads=12,
        loss=loss,
        choose=choose,
    )
    assert found.subnet.words.startswith("12 of 24 heads")


@dataclass
class Said:
    logits: torch.Tensor
    loss: torch.Tensor | None


class Labeller(nn.Module):
    """Layers that no test of ours knows, whose outputs are an object."""

    def __init__(self, said=Said):
        super().__init__()
        self.said, self.words, self.out = said, nn.Embedding(64, 32), nn.Linear(32, 64)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2)
        )
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(2)
        )

    def forward(self, input_ids, labels=None):
        x = self.words(input_ids)
        for layer, mlp in zip(self.encoder, self.mlp, strict=True):
            x = layer(x) + mlp(x)
        said = self.out(x)
        return self.said(
            said, None if labels is None else cross_entropy(said.flatten(0, 1), labels.flatten())
        )


@pytest.mark.parametrize("said", [Said, lambda logits, loss: SimpleNamespace(logits=logits, loss=loss)])
def test_a_model_that_gives_an_object(said):
    found = prune(Labeller(said), [of_words() for _ in range(4)], params=0.7)
    assert found.parameters[1] <= 0.7 * found.parameters[0]


def test_a_first_layer_that_others_need_stays():
    torch.manual_seed(0)
    sizes = dict(SMALL, num_hidden_layers=4, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    model = tf.ModernBertForMaskedLM(tf.ModernBertConfig(**sizes, pad_token_id=0))
    for part in (model.model.layers[0].attn, model.model.layers[0].mlp):
        part.Wo.weight.data.zero_()  # it is the first that a plan would drop
    said = []
    found = prune(model, [of_words() for _ in range(4)], params=0.35, report=said.append)
    assert any("layer 0 of the encoder stays" in line for line in said)
    assert 0 not in found.subnet.dropped.get("encoder", ())


@pytest.mark.parametrize("name", ["Dinov2", "Beit"])
def test_a_backbone_that_lost_a_layer_is_read_again(name, tmp_path):
    sizes = {name: SMALL[name] for name in SMALL if name != "vocab_size"} | dict(image_size=32, patch_size=8)
    config = (
        getattr(tf, f"{name}Config")(**sizes, mlp_ratio=2) if name == "Dinov2" else tf.BeitConfig(**sizes)
    )
    model = getattr(tf, f"{name}ForImageClassification")(config).eval()
    Subnet.of(model).without(layers={"encoder": [1]}).remove(model)
    save_pruned(model, tmp_path / "smaller")
    image = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(load_pruned(tmp_path / "smaller")(image).logits, model(image).logits)


@pytest.mark.parametrize("how", ["in place", "around it"])
def test_a_compiled_model_is_refused_and_stays(how):
    model = tf.BertForMaskedLM(tf.BertConfig(**SMALL))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    compiled = model if how == "in place" else torch.compile(model, backend="eager")
    if how == "in place":
        model.compile(backend="eager")
    with pytest.raises(ValueError, match="the BertForMaskedLM is compiled, and its parts are not seen"):
        prune(compiled, [of_words()], heads=4)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def switch():
    torch.manual_seed(0)
    sizes = dict(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_heads=4, num_layers=4, num_decoder_layers=4)
    sizes |= dict(num_experts=4, expert_capacity=64, decoder_start_token_id=0)
    return tf.SwitchTransformersForConditionalGeneration(
        tf.SwitchTransformersConfig(**sizes, num_sparse_encoder_layers=2, num_sparse_decoder_layers=2)
    )


def test_a_table_of_layers_of_experts_by_turns_counts_each_by_its_own_size():
    model = switch()
    table = cost_table(model, parameters, unit="parameters")
    whole = Subnet.of(model)
    for layers in ({}, {"encoder": [1]}, {"encoder": [2]}, {"encoder": [1, 3], "decoder": [1, 3]}):
        shape = whole.without(layers=layers)
        with shape.removed(model):
            assert table.cost(shape) == pytest.approx(parameters(model), rel=1e-6)


def test_a_layer_in_the_middle_that_cannot_go_is_found_before_the_plan():
    said = []
    found = prune(switch(), [of_words() for _ in range(4)], params=0.86, report=said.append)
    assert any("layer 2 of the decoder stays" in line for line in said)
    assert found.parameters[1] <= 0.8601 * found.parameters[0]


def test_a_number_of_parameters_that_no_model_has_is_refused():
    model = switch()
    before = parameters(model)
    with pytest.raises(ValueError, match=r"params=0.2 cannot be met: .*parameters"):
        prune(model, [of_words() for _ in range(4)], params=0.2)
    assert parameters(model) == before


def test_where_the_first_layer_stays_all_others_may_go():
    torch.manual_seed(0)
    sizes = dict(SMALL, num_hidden_layers=2, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    config = tf.ModernBertConfig(**sizes, pad_token_id=0, num_labels=8, max_position_embeddings=32)
    model = tf.ModernBertForTokenClassification(config)
    found = prune(model, [{"input_ids": ids, "labels": ids % 8} for ids in words(4, 4, 9)], params=0.22)
    assert found.subnet.dropped == {"encoder": [1]}


def test_heads_that_no_batch_comes_to_are_named_before_they_go():
    class TwoTowers(tf.BertForMaskedLM):
        def __init__(self, config):
            super().__init__(config)
            self.images = tf.ViTModel(tf.ViTConfig(**SIZES_OF_IMAGES))

    torch.manual_seed(0)
    model = TwoTowers(tf.BertConfig(**SMALL))
    with pytest.warns(UserWarning, match="scores 0, and goes first: either it does nothing, or"):
        prune(model, [of_words() for _ in range(4)], heads=16, choose="importance", refit=None)

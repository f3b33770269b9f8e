"""Models whose layers, passes or configurations are not like those of the usual ones: the statistics of their
heads are those of plain passes, and what is removed, saved and read again is what was asked for."""

import copy
import math

import pytest
import torch
from torch import nn

from headgates.analysis.batches import passed
from headgates.bridges.classifier import Classifier
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import (
    ALL_KINDS,
    HeadMap,
    Subnet,
    attach,
    find_sites,
    heads_left,
    load_pruned,
    reconstruct,
    remove,
    save_pruned,
)
from headgates.gates.proof import outputs
from headgates.gates.rules import SITE_RULES, is_tested, rule_of
from headgates.gates.site_rule import projection
from headgates.gates.site_walk import SiteWalk, its_own, stack_of
from tests.gates.family_checks import close, opened, uneven
from tests.worlds.families import SETTINGS, D, floats, ids

tf = pytest.importorskip("transformers", reason="models of others need the extra hf")
IMAGE = 30  # the word that stands for a part of an image


def config(name: str, **more):
    cls = getattr(tf, f"{name}Config")
    known, made = cls(), {each for each in dir(cls) if isinstance(getattr(cls, each), property)}
    sizes = {each: value for each, value in SETTINGS.items() if hasattr(known, each) and each not in made}
    return cls(**{**sizes, "pad_token_id": 0, **more})


def model_of(name: str, task: str, **more) -> nn.Module:
    torch.manual_seed(0)
    model = getattr(tf, name + task)(config(name, **more)).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "norm" not in path.lower() and parameter.requires_grad:
                parameter.normal_(0, 0.2)
    return model


def words() -> dict[str, torch.Tensor]:
    return {"input_ids": ids(2)}


# ---------------------------------------------------------------- statistics


def llava() -> nn.Module:
    """Which reads the last layer but one of its images."""
    vision = config("CLIPVision", num_hidden_layers=3)
    whole = dict(vision_config=vision, text_config=config("Llama"), image_token_index=IMAGE)
    return model_of("Llava", "ForConditionalGeneration", **whole, image_token_id=IMAGE)


def of_image_and_words() -> dict[str, torch.Tensor]:
    text = ids(2).clamp(max=IMAGE - 1)
    return {
        "input_ids": torch.cat([torch.full((2, 4), IMAGE), text], 1),
        "pixel_values": floats(2, 3, 8, 8),
    }


def gemma() -> nn.Module:
    """Whose last layers read the keys that others put down."""
    more = dict(
        num_hidden_layers=4,
        vocab_size_per_layer_input=SETTINGS["vocab_size"],
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        laurel_rank=4,
        altup_num_inputs=2,
        activation_sparsity_pattern=None,
        intermediate_size=[48] * 4,
    )
    torch.manual_seed(0)
    return tf.Gemma3nForCausalLM(config("Gemma3nText", **more)).eval()


@pytest.mark.parametrize(
    ("build", "batch", "kept_as"),
    [
        (lambda: model_of("Llama", "ForCausalLM"), words, stack_of),
        (llava, of_image_and_words, its_own),
        (gemma, words, None),
    ],
    ids=["Llama", "LLaVA", "Gemma 3n"],
)
@pytest.mark.filterwarnings("ignore:the (heads|neurons) of")
def test_a_site_sees_what_a_plain_pass_gives_it_whoever_reads_the_layers_before_it(build, batch, kept_as):
    model, found = build(), {}
    for site, module in find_sites(model, ALL_KINDS).items():
        projection(module, rule_of(module).out).register_forward_pre_hook(
            lambda _, given, site=site: found.update({site: found.get(site, given[0].clone())})
        )
    with torch.no_grad():
        model(**batch())
    with SiteWalk(model, passed, kinds=ALL_KINDS) as walk:
        order = walk.order(batch())
        assert walk.kept_as is kept_as
        for site in order:
            assert torch.equal(walk.see(site, 0, batch())[0], found[site])
            walk.leave(site)


class Skipping(nn.Module):
    """Whose third layer reads what the first gave too, and no other one does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(12, 3, 24, batch_first=True) for _ in range(5)
        )

    def forward(self, x):
        kept = []
        for number, layer in enumerate(self.encoder):
            kept.append(x := layer(x + kept[0] if number == 2 else x))
        return x


def test_a_layer_in_the_middle_may_read_what_an_earlier_one_gave():
    model, x = Skipping().eval(), floats(2, 5, 12)
    with SiteWalk(model, lambda model, batch: model(batch), kinds=ALL_KINDS) as walk:
        walk.order(x)
        assert walk.kept_as is its_own


def test_an_output_projection_that_is_called_for_two_texts_is_one_clear_line():
    model = model_of("PegasusX", "Model", num_global_tokens=8, block_size=4)
    batch = {"input_ids": ids(2), "decoder_input_ids": ids(2)}
    closed = HeadMap({site: torch.arange(site.heads) == 0 for site in find_sites(model)})
    with pytest.raises(ValueError, match="calls one output projection with inputs of the shapes"):
        reconstruct(model, closed, [batch], passed)


# ---------------------------------------------------------------- what proves a removal


def heads_go(model: nn.Module, batch: dict[str, torch.Tensor], **proof) -> None:
    """Some heads of each layer go, and the outputs are those with masks on them."""
    inputs = (), batch
    closed = uneven(model)
    masked = copy.deepcopy(model)
    attach(masked, gate="mask", xi=opened(closed))
    expected = outputs(masked, inputs)
    remove(model, closed, **proof)
    for one, other in zip(outputs(model, inputs), expected, strict=True):
        close(one, other)


def test_a_removal_is_not_proved_by_passes_that_do_not_come_to_it():
    """Whose words are a short example, and whose images are not."""
    model = tf.VisionTextDualEncoderModel(
        tf.VisionTextDualEncoderConfig.from_vision_text_configs(
            config("Dinov2", num_hidden_layers=1), config("Bert", num_hidden_layers=1), projection_dim=8
        )
    )
    vision = [site for site, module in find_sites(model).items() if "Dino" in type(module).__name__]
    closed = HeadMap({site: torch.arange(site.heads) == 0 for site in vision})
    with pytest.raises(ValueError, match="the rule of Dinov2Attention is not proved"):
        remove(model, closed)
    assert heads_left(model).count() == 6


class Late(nn.Module):
    """Whose pass fails behind the attention where the words are too few."""

    def __init__(self):
        super().__init__()
        self.encoder = tf.Dinov2Model(config("Dinov2", num_hidden_layers=1))

    def forward(self, pixel_values, words):
        found = self.encoder(pixel_values).last_hidden_state
        if words < 2:
            raise ValueError("image features and image tokens do not match")
        return found


def test_a_pass_that_fails_behind_what_was_cut_proves_nothing():
    model = Late()
    closed = HeadMap({site: torch.arange(site.heads) == 0 for site in find_sites(model)})
    with pytest.raises(ValueError, match="the rule of Dinov2Attention is not proved"):
        remove(model, closed, inputs=((floats(2, 3, 8, 8), 1), {}))
    remove(model, closed, inputs=((floats(2, 3, 8, 8), 2), {}))
    assert heads_left(model).count() == 2


def test_a_model_that_draws_random_numbers_in_evaluation_is_proved_by_the_same_ones():
    model = model_of("ViTMAE", "Model", image_size=8, patch_size=2)
    before = torch.random.get_rng_state()
    heads_go(model, {"pixel_values": floats(2, 3, 8, 8)})
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_model_that_changes_itself_in_the_proof_is_put_back_where_it_is_refused():
    sparse = dict(attention_type="block_sparse", block_size=4, num_random_blocks=1)
    model = model_of("BigBird", "Model", max_position_embeddings=96, **sparse)
    with pytest.raises(ValueError, match="The model is as it was"):
        remove(model, uneven(model))
    assert model.attention_type == "block_sparse"
    assert heads_left(model).count() == 6


OTHERS = {
    "Moonshine": (
        lambda: model_of(
            "Moonshine",
            "ForConditionalGeneration",
            encoder_num_key_value_heads=3,
            decoder_num_key_value_heads=3,
            encoder_num_attention_heads=3,
            decoder_num_attention_heads=3,
        ),
        lambda: {"input_values": floats(2, 2000), "decoder_input_ids": ids(2)},
    ),
    "Swinv2": (
        lambda: model_of(
            "Swinv2",
            "Model",
            image_size=16,
            embed_dim=12,
            num_layers=2,
            depths=[1, 1],
            num_heads=[3, 3],
            num_attention_heads=[3, 3],
            window_size=2,
        ),
        lambda: {"pixel_values": floats(2, 3, 16, 16)},
    ),
    "LayoutLMv3": (
        lambda: model_of(
            "LayoutLMv3",
            "ForTokenClassification",
            input_size=8,
            coordinate_size=2,
            shape_size=2,
            max_2d_position_embeddings=40,
        ),
        lambda: {**words(), "bbox": ids(2)[..., None].expand(-1, -1, 4), "pixel_values": floats(2, 3, 8, 8)},
    ),
    "Luke": (
        lambda: model_of("Luke", "Model", entity_vocab_size=9, entity_emb_size=D),
        lambda: {
            **words(),
            "entity_ids": ids(2)[:, :2] % 9,
            "entity_position_ids": torch.arange(2).view(1, 2, 1).expand(2, 2, 3),
        },
    ),
    "VJEPA2": (
        lambda: model_of(
            "VJEPA2",
            "Model",
            hidden_size=24,
            crop_size=8,
            frames_per_clip=2,
            pred_hidden_size=24,
            pred_num_attention_heads=3,
            pred_num_hidden_layers=1,
            pred_num_mask_tokens=1,
        ),
        lambda: {"pixel_values_videos": floats(2, 2, 3, 8, 8)},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.filterwarnings("ignore:the (heads|neurons) of")
def test_a_class_with_a_rule_of_its_own_is_proved_and_saved(name, tmp_path):
    build, batch = OTHERS[name]
    model = build()
    assert any(type(each).__name__ in SITE_RULES and not is_tested(each) for each in model.modules())
    heads_go(model, batch(), inputs=((), batch()))
    save_pruned(model, tmp_path / "smaller")
    loaded = outputs(load_pruned(tmp_path / "smaller"), ((), batch()))
    for one, other in zip(loaded, outputs(model, ((), batch())), strict=True):
        close(one, other)


def test_neurons_that_another_part_than_the_projections_reads_are_left_alone():
    sizes = dict(depths=[1] * 4, hidden_sizes=[12, 24, 24, 24], num_attention_heads=[1, 3, 3, 3])
    model = tf.SegformerForSemanticSegmentation(tf.SegformerConfig(num_labels=4, **sizes))
    assert {site.kind for site in find_sites(model, ALL_KINDS)} == {"enc-self"}


# ---------------------------------------------------------------- folders, layers and names


def test_a_model_whose_pooling_head_lost_heads_is_read_again(tmp_path):
    vision = config("SiglipVision", num_hidden_layers=1)
    model = tf.SiglipForImageClassification(
        tf.SiglipConfig(vision_config=vision.to_dict(), text_config=config("SiglipText").to_dict())
    ).eval()
    remove(model, uneven(model), inputs=((), {"pixel_values": floats(2, 3, 8, 8)}))
    save_pruned(model, tmp_path / "smaller")
    close(load_pruned(tmp_path / "smaller")(floats(2, 3, 8, 8)).logits, model(floats(2, 3, 8, 8)).logits)


def test_a_configuration_with_an_infinity_is_read_again(tmp_path):
    model = model_of("Bert", "Model", limit=(0.0, math.inf))
    remove(model, uneven(model))
    save_pruned(model, tmp_path / "smaller")
    assert load_pruned(tmp_path / "smaller").config.limit[1] == math.inf


def test_a_model_whose_last_attention_goes_with_its_layer_is_counted():
    sizes = dict(num_hidden_layers=2, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=9)
    sizes |= dict(expert_layer_offset=8, use_mamba_kernels=False, mamba_dt_rank=4)
    model = tf.JambaForCausalLM(config("Jamba", **sizes))
    without = Subnet.of(model).without(layers={"decoder": [1]})
    assert without.parameters(model) < sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize("name", ["BigBird", "RoFormer", "RemBert", "MegatronBert"])
def test_a_decoder_that_stands_in_what_is_called_an_encoder_is_one(name):
    more = {"attention_type": "original_full"} if name == "BigBird" else {}
    if name == "RemBert":
        more |= dict(input_embedding_size=8, output_embedding_size=8)
    for is_decoder, kind in ((True, "dec-self"), (False, "enc-self")):
        model = model_of(name, "Model", is_decoder=is_decoder, **more)
        assert {site.kind for site in find_sites(model)} == {kind}


@pytest.mark.parametrize("name", ["Esm", "Albert"])
def test_a_classifier_s_attention_is_that_of_transformers_own(name):
    more = {"mask_token_id": 4, "position_embedding_type": "absolute"} if name == "Esm" else {}
    more |= {"embedding_size": D} if name == "Albert" else {}
    net = model_of(name, "ForSequenceClassification", **more)
    net.set_attn_implementation("eager")
    model, weights, given = Classifier(net, SpecialTokens(0, 1, 2, 3)), {}, ids(2).clamp(min=5)
    model.encode(given, weights)
    expected = net(given, torch.ones_like(given), output_attentions=True).attentions
    (own, *_) = weights.values()
    if name == "Albert":
        own = own.mean(0) if len(weights) == 1 else own[0] if own.dim() == 5 else own
        expected = [torch.stack(expected).mean(0)] if len(weights) == 1 else expected
    close(own, expected[0])

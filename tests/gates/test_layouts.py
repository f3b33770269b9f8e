"""Classes without a rule of their own, which are read by a layout: gates, zeroed columns and removal give the
same, of heads and of neurons."""

import pytest

from tests.gates.family_checks import heads_removed, held_by, neurons
from tests.worlds.families import (
    DECODER,
    ENCODER,
    LENGTH,
    Family,
    causal,
    floats,
    hugging_face,
    images,
    lines,
    masked,
)


def vision(prefix: str, path: str, **more) -> Family:
    return hugging_face(prefix, prefix, "Model", images, ENCODER, path, **more)


def spectra(sentences):
    return {"input_features": floats(sentences, LENGTH, 7)}


FAMILIES = [
    vision("Dinov2", "encoder.layer.{}.attention.o_proj"),
    vision("Aimv2Vision", "encoder.layers.{}.attention.out_proj", use_head=False),
    vision(
        "InternVLVision", "encoder.layer.{}.attention.projection_layer", image_size=(8, 8), patch_size=(4, 4)
    ),
    vision("Beit", "layers.{}.attention.o_proj", use_relative_position_bias=True),
    masked("Esm", "Esm", "esm.encoder.layer.{}.attention.output.dense", mask_token_id=4),
    masked("NomicBert", "NomicBert", "nomic_bert.layers.{}.self_attn.o_proj"),
    causal("StarCoder", "GPTBigCode", "transformer.h.{}.attn.c_proj"),
    causal("ModernBERT's decoder", "ModernBertDecoder", "model.layers.{}.attn.Wo"),
    hugging_face("BLOOM, the base alone", "Bloom", "Model", lines, DECODER, "h.{}.self_attention.dense"),
    hugging_face("Bark", "BarkSemantic", "Model", lines, DECODER, "layers.{}.attn.out_proj", block_size=40),
    hugging_face(
        "ImageGPT", "ImageGPT", "ForCausalImageModeling", lines, DECODER, "transformer.h.{}.attn.c_proj"
    ),
    hugging_face(
        "Wav2Vec2-BERT",
        "Wav2Vec2Bert",
        "ForCTC",
        spectra,
        ENCODER,
        "wav2vec2_bert.encoder.layers.{}.self_attn.linear_out",
        feature_projection_input_dim=7,
        position_embeddings_type="relative",
        conv_depthwise_kernel_size=3,
    ),
]
NO_NEURONS = {"Bark", "Wav2Vec2-BERT"}  # of other names; two layers in one


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_heads_and_neurons_of_a_layout_are_those_that_it_says(family):
    assert held_by(family) == "hook"
    assert heads_removed(family) == "yes"
    if family.name not in NO_NEURONS:
        assert neurons(family) == "yes"

"""A tiny model of each family of attentions that the site rules know, on random weights, and where its W_O
are by its own code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headgates.configs.settings import ModelConfig
from headgates.models.transformer import Transformer
from tests.worlds.fairseq_layout import FairseqModel

HEADS, WIDTH, LAYERS, LENGTH, WORDS = 3, 4, 2, 5, 31
GENERATION = "ForConditionalGeneration"
D = HEADS * WIDTH
# a tiny size under each of Hugging Face's names; a configuration takes those that it has
SETTINGS: dict[str, Any] = {
    name: value
    for value, names in (
        (WORDS, "vocab_size src_vocab_size tgt_vocab_size"),
        (D, "d_model hidden_size n_embd dim"),
        (
            HEADS,
            "num_heads n_head n_heads num_attention_heads encoder_attention_heads "
            "decoder_attention_heads num_key_value_heads",
        ),
        (WIDTH, "head_dim d_kv"),
        (LAYERS, "num_layers num_hidden_layers n_layer n_layers encoder_layers decoder_layers"),
        (17, "d_ff hidden_dim intermediate_size encoder_ffn_dim decoder_ffn_dim"),
        (40, "max_position_embeddings n_positions max_target_positions"),
        (LENGTH, "max_source_positions"),
        (
            0.0,
            "dropout dropout_rate hidden_dropout_prob attention_probs_dropout_prob resid_pdrop "
            "embd_pdrop attn_pdrop activation_dropout attention_dropout layerdrop encoder_layerdrop "
            "decoder_layerdrop",
        ),
        (8, "image_size relative_attention_num_buckets"),
        (4, "patch_size"),
        (7, "num_mel_bins"),
        (6, "relative_attention_max_distance"),
        (None, "forced_eos_token_id begin_suppress_tokens"),
        (0, "pad_token_id decoder_start_token_id"),
        (1, "bos_token_id"),
        (2, "eos_token_id"),
        (["en", "de"], "langs"),
    )
    for name in names.split()
}


@dataclass(frozen=True)
class Family:
    """One family. `build` gives its model in evaluation, `batch(sentences)` the arguments of its forward with
    LENGTH positions a sentence.

    outs: site name -> path of its W_O, written by hand. refuses: of the error, where its heads can only be
    gated. windows: whether its attentions see parts of an image in the place of sentences."""

    name: str
    classes: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], dict[str, Tensor]]
    outs: dict[str, str]
    heads: int = HEADS
    generates: bool = False
    library: str = "transformers"
    refuses: str = ""
    windows: bool = False

    def model(self) -> nn.Module:
        if self.library == "transformers":
            pytest.importorskip("transformers", reason="Hugging Face's families need the extra hf")
        torch.manual_seed(0)
        model = self.build().eval()
        with torch.no_grad():  # libraries start near 0, where heads hardly matter; sinusoids stay
            for name, parameter in model.named_parameters():
                if "norm" not in name.lower() and parameter.requires_grad:
                    parameter.normal_(0, 0.3)
        return model

    def output(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return shown(model(**batch))

    def explicitly(self, model: nn.Module, batch: dict[str, Tensor], xi: dict[str, Tensor]) -> Tensor:
        """The output with the columns of head h of every W_O times xi_h; each sentence on its own where xi is
        (B, H)."""
        first = next(iter(xi.values()))
        if first.dim() > 1:
            return torch.cat(
                [
                    self.explicitly(
                        model,
                        {name: tensor[b : b + 1] for name, tensor in batch.items()},
                        {site: row[b] for site, row in xi.items()},
                    )
                    for b in range(len(first))
                ]
            )
        weights = {}
        for site, path in self.outs.items():
            weight = model.get_submodule(path).weight.detach()
            turned = hasattr(model.get_submodule(path), "nf")  # Conv1D's is (inputs, outputs)
            columns = weight.T if turned else weight
            scaled = columns * xi[site].repeat_interleave(columns.shape[1] // len(xi[site])).to(weight)
            weights[f"{path}.weight"] = scaled.T if turned else scaled
        return shown(torch.func.functional_call(model, weights, (), batch))


def shown(result: Any) -> Tensor:
    """What a model says at last."""
    if isinstance(result, Tensor):
        return result
    if "text_embeds" in result:
        return torch.cat([result.text_embeds, result.image_embeds], 1)
    names = ("logits", "pooler_output", "last_hidden_state")
    return next(result[name] for name in names if result.get(name) is not None)


def ids(sentences: int, seed: int = 0) -> Tensor:
    return torch.randint(3, WORDS, (sentences, LENGTH), generator=torch.Generator().manual_seed(seed))


def floats(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def pairs(sentences: int) -> dict[str, Tensor]:
    return {"input_ids": ids(sentences), "decoder_input_ids": ids(sentences, 1)}


def lines(sentences: int) -> dict[str, Tensor]:
    return {"input_ids": ids(sentences)}


def masked_pairs(sentences: int) -> dict[str, Tensor]:
    """For FSMT: without the mask its forward asks the ids for padding, which torch.export cannot follow."""
    return {**pairs(sentences), "decoder_attention_mask": torch.ones(sentences, LENGTH, dtype=torch.long)}


def global_tokens(sentences: int) -> dict[str, Tensor]:
    """The first of a sentence sees all and is seen by all."""
    return {"global_attention_mask": (torch.arange(LENGTH) == 0).long().expand(sentences, LENGTH)}


def spectra(sentences: int) -> dict[str, Tensor]:
    return {
        "input_features": floats(sentences, 7, 2 * LENGTH),
        "decoder_input_ids": ids(sentences, 1),
    }


def frames(sentences: int) -> dict[str, Tensor]:
    """For Speech2Text, which halves their number."""
    return {
        "input_features": floats(sentences, 2 * LENGTH, 7),
        "decoder_input_ids": ids(sentences, 1),
    }


def waves(sentences: int) -> dict[str, Tensor]:
    return {"input_values": floats(sentences, 4 * LENGTH)}


def images(sentences: int) -> dict[str, Tensor]:
    return {"pixel_values": floats(sentences, 3, 8, 8)}  # 4 patches and the class: LENGTH positions


def sites(kinds: Sequence[str], *paths: str) -> dict[str, str]:
    """Site names of all layers of some kinds, with the paths of their W_O."""
    return {
        f"{'encoder' if kind == 'enc-self' else 'decoder'}.{layer}.{kind}": path.format(layer)
        for kind, path in zip(kinds, paths, strict=True)
        for layer in range(LAYERS)
    }


def hugging_face(
    name: str,
    prefix: str,
    task: str,
    batch: Callable[[int], dict[str, Tensor]],
    kinds: Sequence[str],
    *paths: str,
    classes: str = "",
    config: str = "",
    refuses: str = "",
    **more: Any,
) -> Family:
    def build() -> nn.Module:
        import transformers

        make = getattr(transformers, f"{config or prefix}Config")
        known = make()
        made = {name for name in dir(type(known)) if isinstance(getattr(type(known), name), property)}
        settings = {
            name: value for name, value in SETTINGS.items() if hasattr(known, name) and name not in made
        }
        return getattr(transformers, prefix + task)(make(**{**settings, **more}))

    return Family(
        name,
        classes or f"{prefix}Attention",
        build,
        batch,
        sites(kinds, *paths),
        heads=more.get("num_attention_heads", HEADS),
        refuses=refuses,
        generates=task in ("MTModel", GENERATION, "LMHeadModel", "ForCausalLM", "ForTextToText"),
    )


ENCODER, DECODER = ("enc-self",), ("dec-self",)
BOTH = ("enc-self", "dec-self", "cross")
SEQ2SEQ = (
    BOTH,
    "model.encoder.layers.{}.self_attn.out_proj",
    "model.decoder.layers.{}.self_attn.out_proj",
    "model.decoder.layers.{}.encoder_attn.out_proj",
)
T5 = (
    BOTH,
    "encoder.block.{}.layer.0.SelfAttention.o",
    "decoder.block.{}.layer.0.SelfAttention.o",
    "decoder.block.{}.layer.1.EncDecAttention.o",
)
HIDDEN = "transformer.h.{}.self_attention.dense"
BUCKETS = dict(relative_attention_num_buckets=32)  # MPNet's forward knows no other number
EXPERTS = dict(
    num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, shared_expert_intermediate_size=8
)
CODEGEN = dict(
    rotary_dim=2, num_attention_heads=4, n_head=4, hidden_size=16, n_embd=16
)  # its forward has four parts
WAVES: dict[str, Any] = dict(
    conv_dim=[8], conv_kernel=[4], conv_stride=[4], num_feat_extract_layers=1, apply_spec_augment=False
)
RELATIVE = dict(relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=4)


def masked(name: str, prefix: str, path: str, **more: Any) -> Family:
    return hugging_face(name, prefix, "ForMaskedLM", lines, ENCODER, path, **more)


def causal(name: str, prefix: str, path: str, **more: Any) -> Family:
    return hugging_face(name, prefix, "ForCausalLM", lines, DECODER, path, **more)


def translation(name: str, prefix: str, **more: Any) -> Family:
    return hugging_face(name, prefix, GENERATION, pairs, *SEQ2SEQ, **more)


def llama(name: str, prefix: str, *, out: str = "o_proj", **more: Any) -> Family:
    """Two heads to a key head."""
    return causal(name, prefix, f"model.layers.{{}}.self_attn.{out}", num_attention_heads=2 * HEADS, **more)


def bert_and_gpt2() -> nn.Module:
    import transformers

    encoder, decoder = transformers.BertConfig(), transformers.GPT2Config()
    for config in (encoder, decoder):
        config.update({name: value for name, value in SETTINGS.items() if hasattr(config, name)})
    decoder.add_cross_attention = decoder.is_decoder = True
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id, config.vocab_size = 0, 0, WORDS
    return transformers.EncoderDecoderModel(config)


def siglip() -> Family:
    """Layers with heads of their own, and torch's attention, by which one query pools what they give."""
    layers = hugging_face(
        "SigLIP, vision", "SiglipVision", "Model", images, ENCODER, "encoder.layers.{}.self_attn.out_proj"
    )
    outs = {**layers.outs, "decoder.0.cross": "head.attention.out_proj"}
    return replace(layers, classes="SiglipAttention`, `nn.MultiheadAttention", outs=outs)


def captions(sentences: int) -> dict[str, Tensor]:
    return {**lines(sentences), **images(sentences)}


def clip() -> nn.Module:
    """Two towers, each with its own layers."""
    import transformers

    sizes = {name: value for name, value in SETTINGS.items() if name in dir(transformers.CLIPTextConfig())}
    seen = {name: value for name, value in SETTINGS.items() if name in dir(transformers.CLIPVisionConfig())}
    return transformers.CLIPModel(transformers.CLIPConfig(text_config=sizes, vision_config=seen))


def towers(path: str, *names: str) -> dict[str, str]:
    """Site names of all layers of encoders, each in its own tower, with the paths of their W_O."""
    return {
        f"{name}.encoder.{layer}.enc-self": f"{name}.{path}".format(layer)
        for name in names
        for layer in range(LAYERS)
    }


def swin() -> Family:
    """Stages of layers, of which the second is twice as wide; windows in the place of images, and a table of
    positions in each layer."""
    family = hugging_face(
        "Swin",
        "Swin",
        "ForImageClassification",
        images,
        (),
        image_size=8,
        patch_size=2,
        window_size=2,
        embed_dim=D,
        depths=[2, 1],
        num_heads=[HEADS, HEADS],
        num_attention_heads=[HEADS, HEADS],
        drop_path_rate=0.0,
    )
    path = "swin.encoder.layers.{}.blocks.{}.attention.o_proj"
    places = enumerate([(0, 0), (0, 1), (1, 0)])
    outs = {f"encoder.{n}.enc-self": path.format(*place) for n, place in places}
    return replace(family, outs=outs, heads=HEADS, windows=True)


def own() -> nn.Module:
    config = ModelConfig(
        d_model=D,
        heads=HEADS,
        ffn=17,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        dropout=0.0,
        embeddings="tied-decoder",
    )
    return Transformer(config, source_vocab=WORDS, target_vocab=WORDS)


FAMILIES = [
    Family(
        "our own Transformer",
        "MultiHeadAttention",
        own,
        lambda sentences: {"source": ids(sentences), "target_in": ids(sentences, 1)},
        sites(
            BOTH,
            "encoder.layers.{}.self_attention.out_proj",
            "decoder.layers.{}.self_attention.out_proj",
            "decoder.layers.{}.cross_attention.out_proj",
        ),
        library="models/",
    ),
    hugging_face("Marian", "Marian", "MTModel", pairs, *SEQ2SEQ),
    translation("BART", "Bart"),
    translation("mBART", "MBart"),
    translation("M2M100, NLLB", "M2M100"),
    translation("Pegasus", "Pegasus"),
    hugging_face("T5", "T5", GENERATION, pairs, *T5, d_kv=5, head_dim=5, decoder_start_token_id=0),
    hugging_face("mT5", "MT5", GENERATION, pairs, *T5, d_kv=5, head_dim=5, decoder_start_token_id=0),
    hugging_face("FSMT", "FSMT", GENERATION, masked_pairs, *SEQ2SEQ, classes="FSMT's Attention"),
    hugging_face("Whisper", "Whisper", GENERATION, spectra, *SEQ2SEQ),
    masked("BERT", "Bert", "bert.encoder.layer.{}.attention.output.dense"),
    masked(
        "RoBERTa",
        "Roberta",
        "roberta.encoder.layer.{}.attention.output.dense",
    ),
    masked(
        "DistilBERT",
        "DistilBert",
        "distilbert.transformer.layer.{}.attention.out_lin",
        classes="DistilBertSelfAttention",
    ),
    hugging_face("ViT", "ViT", "ForImageClassification", images, ENCODER, "vit.layers.{}.attention.o_proj"),
    hugging_face("GPT-2", "GPT2", "LMHeadModel", lines, DECODER, "transformer.h.{}.attn.c_proj"),
    llama("Llama", "Llama"),
    # its heads have the width hidden_size / heads
    llama("Qwen2", "Qwen2", hidden_size=2 * D),
    llama("Qwen3", "Qwen3"),  # norms over each head
    llama("Mistral", "Mistral"),
    llama("Mixtral", "Mixtral", num_local_experts=2, intermediate_size=16),  # widths are aligned
    llama("Gemma", "Gemma"),
    llama("Gemma 2", "Gemma2"),
    llama("Gemma 3", "Gemma3", config="Gemma3Text"),
    llama("Granite", "Granite"),
    llama("SmolLM3", "SmolLM3"),
    llama("Cohere", "Cohere", hidden_size=2 * D, use_qk_norm=True),  # a norm's weights for each head
    llama("Starcoder2", "Starcoder2"),
    llama("one key head (Gemma)", "Gemma", num_key_value_heads=1),
    llama("OLMo 2", "Olmo2"),  # norms over all heads
    llama("Phi", "Phi", out="dense", hidden_size=2 * D),
    llama("Phi-3", "Phi3", hidden_size=2 * D),
    masked("ModernBERT", "ModernBert", "model.layers.{}.attn.Wo", pad_token_id=0),
    *(
        masked(name, prefix, f"{path}.encoder.layer.{{}}.attention.{out}", **more)
        for name, prefix, path, out, more in [
            ("XLM-R", "XLMRoberta", "roberta", "output.dense", {}),
            ("CamemBERT", "Camembert", "roberta", "output.dense", {}),
            ("ELECTRA", "Electra", "electra", "output.dense", {}),
            ("DeBERTa", "Deberta", "deberta", "output.dense", RELATIVE),
            ("DeBERTa v2, v3", "DebertaV2", "deberta", "output.dense", RELATIVE),
            ("MPNet", "MPNet", "mpnet", "attn.o", {"classes": "MPNetSelfAttention", **BUCKETS}),
        ]
    ),
    masked(
        "ALBERT",
        "Albert",
        "albert.encoder.albert_layer_groups.{}.albert_layers.0.attention.dense",
        num_hidden_groups=LAYERS,
        num_hidden_layers=LAYERS + 2,
    ),
    hugging_face(
        "DeiT", "DeiT", "ForImageClassification", images, ENCODER, "deit.layers.{}.attention.o_proj"
    ),
    hugging_face(
        "DINOv3",
        "DINOv3ViT",
        "Model",
        images,
        ENCODER,
        "model.layer.{}.attention.o_proj",
        num_register_tokens=1,
    ),
    masked("Data2Vec, text", "Data2VecText", "data2vec_text.encoder.layer.{}.attention.output.dense"),
    hugging_face(
        "Data2Vec, vision",
        "Data2VecVision",
        "ForImageClassification",
        images,
        ENCODER,
        "data2vec_vision.encoder.layer.{}.attention.output.dense",
        use_relative_position_bias=True,
        use_shared_relative_position_bias=True,
        attn_implementation="eager",  # its classes are chosen when it is built
    ),
    causal(
        "OPT",
        "OPT",
        "model.decoder.layers.{}.self_attn.out_proj",
        word_embed_proj_dim=D,
        ffn_dim=17,
    ),
    # a number in the softmax for each head
    llama("GPT-OSS", "GptOss", num_local_experts=2, num_experts_per_tok=1, intermediate_size=16),
    # a gate beside each query; its other layers have no heads
    llama("Qwen3-Next", "Qwen3Next", layer_types=["full_attention"] * LAYERS, **EXPERTS),
    *(
        causal(
            name,
            prefix,
            "model.layers.{}.self_attn.o_proj",
            classes=f"{prefix}Attention",
            head_dim=2,
            v_head_dim=WIDTH,
            qk_nope_head_dim=6,
            qk_rope_head_dim=2,
            kv_lora_rank=6,
            q_lora_rank=lora,
            first_k_dense_replace=LAYERS,
        )
        for name, prefix, lora in (
            ("DeepSeek V3", "DeepseekV3", 5),
            ("DeepSeek V2, Lite", "DeepseekV2", None),
        )
    ),
    causal("CodeGen", "CodeGen", "transformer.h.{}.attn.out_proj", **CODEGEN),
    causal("MPT", "Mpt", "transformer.blocks.{}.attn.out_proj", max_seq_len=40),
    causal("GPT-J", "GPTJ", "transformer.h.{}.attn.out_proj", rotary_dim=2),
    causal(
        "GPT-Neo",
        "GPTNeo",
        "transformer.h.{}.attn.attention.out_proj",
        classes="GPTNeoSelfAttention",
        attention_types=[[["global", "local"], 1]],
        window_size=3,
    ),
    causal("GPT-NeoX", "GPTNeoX", "gpt_neox.layers.{}.attention.dense"),
    causal(
        "BLOOM",
        "Bloom",
        HIDDEN,
    ),
    causal(
        "Falcon",
        "Falcon",
        HIDDEN,
    ),
    causal("Falcon, ALiBi", "Falcon", HIDDEN, alibi=True, multi_query=False),
    causal(
        "Falcon, new decoder",
        "Falcon",
        HIDDEN,
        new_decoder_architecture=True,
        num_kv_heads=HEADS,
        num_attention_heads=2 * HEADS,
        hidden_size=2 * D,
    ),
    translation("PLBART", "PLBart"),
    translation("Blenderbot", "Blenderbot"),
    translation("Blenderbot, small", "BlenderbotSmall"),
    hugging_face(
        "Speech2Text",
        "Speech2Text",
        GENERATION,
        frames,
        *SEQ2SEQ,
        num_conv_layers=1,
        conv_kernel_sizes=[3],
        conv_channels=8,
        input_feat_per_channel=7,
        max_source_positions=40,
    ),
    hugging_face(
        "SeamlessM4T, text",
        "SeamlessM4T",
        "ForTextToText",
        pairs,
        BOTH,
        "text_encoder.layers.{}.self_attn.out_proj",
        "text_decoder.layers.{}.self_attn.out_proj",
        "text_decoder.layers.{}.cross_attention.out_proj",
        encoder_ffn_dim=17,
        decoder_ffn_dim=17,
    ),
    hugging_face(
        "Wav2Vec2",
        "Wav2Vec2",
        "ForCTC",
        waves,
        ENCODER,
        "wav2vec2.encoder.layers.{}.attention.out_proj",
        **WAVES,
        num_conv_pos_embedding_groups=2,
        num_conv_pos_embeddings=4,
    ),
    hugging_face(
        "Data2Vec, audio",
        "Data2VecAudio",
        "ForCTC",
        waves,
        ENCODER,
        "data2vec_audio.encoder.layers.{}.attention.out_proj",
        **WAVES,
        num_conv_pos_embedding_groups=2,
        num_conv_pos_embeddings=1,
        conv_pos_kernel_size=3,
    ),
    siglip(),
    Family(
        "CLIP",
        "CLIPAttention",
        clip,
        captions,
        towers("encoder.layers.{}.self_attn.out_proj", "text_model", "vision_model"),
    ),
    swin(),
    hugging_face(
        "WavLM",
        "WavLM",
        "ForCTC",
        waves,
        ENCODER,
        "wavlm.encoder.layers.{}.attention.out_proj",
        **WAVES,
        num_conv_pos_embedding_groups=2,
        num_conv_pos_embeddings=4,
        num_buckets=8,
        max_bucket_distance=6,
    ),
    masked(
        "Longformer",
        "Longformer",
        "longformer.encoder.layer.{}.attention.output.dense",
        attention_window=4,
    ),
    hugging_face(
        "LED",
        "LED",
        GENERATION,
        lambda sentences: {**pairs(sentences), **global_tokens(sentences)},
        BOTH,
        "led.encoder.layers.{}.self_attn.output",
        "led.decoder.layers.{}.self_attn.out_proj",
        "led.decoder.layers.{}.encoder_attn.out_proj",
        classes="LEDEncoderAttention`, `LEDDecoderAttention",
        attention_window=4,
        max_encoder_position_embeddings=40,
        max_decoder_position_embeddings=40,
    ),
    hugging_face(
        "ProphetNet",
        "ProphetNet",
        GENERATION,
        pairs,
        BOTH,
        "prophetnet.encoder.layers.{}.self_attn.out_proj",
        "prophetnet.decoder.layers.{}.self_attn.out_proj",
        "prophetnet.decoder.layers.{}.cross_attn.out_proj",
        classes="ProphetNetAttention`, `ProphetNetNgramSelfAttention",
        refuses="can be gated, not removed: its forward gives the heads' outputs the width of the model",
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        num_encoder_attention_heads=HEADS,
        num_decoder_attention_heads=HEADS,
    ),
    hugging_face(
        "Switch Transformers",
        "SwitchTransformers",
        GENERATION,
        pairs,
        *T5,
        num_experts=2,
        num_decoder_layers=LAYERS,
    ),
    hugging_face("UMT5", "UMT5", GENERATION, pairs, *T5, d_kv=5, head_dim=5),
    hugging_face(
        "LongT5, local",
        "LongT5",
        GENERATION,
        pairs,
        BOTH,
        T5[1].replace("SelfAttention", "LocalSelfAttention"),
        *T5[2:],
        classes="LongT5LocalAttention",
        d_kv=5,
        local_radius=2,
    ),
    Family(
        "GPT-2 with cross-attention",
        "GPT2Attention",
        bert_and_gpt2,
        pairs,
        sites(
            BOTH,
            "encoder.encoder.layer.{}.attention.output.dense",
            "decoder.transformer.h.{}.attn.c_proj",
            "decoder.transformer.h.{}.crossattention.c_proj",
        ),
        generates=True,
    ),
    Family(
        "torch.nn.Transformer",
        "nn.MultiheadAttention",
        lambda: nn.Transformer(D, 2 * HEADS, LAYERS, LAYERS, 17, dropout=0.0, batch_first=True),
        lambda sentences: {"src": floats(sentences, LENGTH, D), "tgt": floats(sentences, LENGTH, D).flip(1)},
        sites(
            BOTH,
            "encoder.layers.{}.self_attn.out_proj",
            "decoder.layers.{}.self_attn.out_proj",
            "decoder.layers.{}.multihead_attn.out_proj",
        ),
        heads=2 * HEADS,
        library="torch",
    ),
    Family(
        "torch.nn.TransformerEncoder",
        "nn.MultiheadAttention",
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(D, HEADS, 17, dropout=0.0, batch_first=True),
            LAYERS,
            enable_nested_tensor=False,
        ),
        lambda sentences: {"src": floats(sentences, LENGTH, D)},
        sites(ENCODER, "layers.{}.self_attn.out_proj"),
        library="torch",
    ),
    Family(
        "fairseq (a stand-in of its layout)",
        "fairseq's MultiheadAttention",
        lambda: FairseqModel(WORDS, D, HEADS, LAYERS),
        lambda sentences: {"src_tokens": ids(sentences), "prev_output_tokens": ids(sentences, 1)},
        sites(BOTH, *(path.removeprefix("model.") for path in SEQ2SEQ[1:])),
        library="stand-in",
    ),
]
BY_NAME = {family.name: family for family in FAMILIES}

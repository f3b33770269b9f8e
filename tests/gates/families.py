"""A tiny model of each family of attentions that the site rules know, on random weights, and where its W_O
are by its own code."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headgates.configs.schema import ModelConfig
from headgates.models.transformer import Transformer
from tests.gates.fairseq_layout import FairseqModel

HEADS, WIDTH, LAYERS, LENGTH, WORDS = 3, 4, 2, 5, 31
D = HEADS * WIDTH


@dataclass(frozen=True)
class Family:
    """One family. `build` gives its model in evaluation, `batch(sentences)` the arguments of its forward with
    LENGTH positions a sentence.

    outs: site name -> path of its W_O, written by hand. turned: W_O is stored (inputs, outputs)."""

    name: str
    classes: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], dict[str, Tensor]]
    outs: dict[str, str]
    turned: bool = False
    heads: int = HEADS
    generates: bool = False
    library: str = "transformers"

    def model(self) -> nn.Module:
        if self.library == "transformers":
            pytest.importorskip("transformers", reason="Hugging Face's families need the extra hf")
        torch.manual_seed(0)
        model = self.build().eval()
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for (
                name,
                parameter,
            ) in model.named_parameters():  # libraries start near 0, where heads hardly matter
                if (
                    "norm" not in name.lower() and parameter.requires_grad
                ):  # sinusoids stay: they are not saved
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        return model

    def output(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return tensor_of(model(**batch))

    def scaled(self, model: nn.Module, xi: dict[str, Tensor]) -> dict[str, Tensor]:
        """The W_O of the model by their paths, the columns of head h times xi_h."""
        weights = {}
        for site, path in self.outs.items():
            weight = model.get_submodule(path).weight
            factors = (
                xi[site].repeat_interleave(weight.shape[0 if self.turned else 1] // len(xi[site])).to(weight)
            )
            weights[f"{path}.weight"] = weight.detach() * (factors[:, None] if self.turned else factors)
        return weights

    def explicitly(self, model: nn.Module, batch: dict[str, Tensor], xi: dict[str, Tensor]) -> Tensor:
        """The output with scaled W_O; each sentence on its own where xi is (B, H)."""
        if next(iter(xi.values())).dim() == 1:
            return tensor_of(torch.func.functional_call(model, self.scaled(model, xi), (), batch))
        sentences = len(next(iter(xi.values())))
        rows = [
            self.explicitly(
                model,
                {name: tensor[b : b + 1] for name, tensor in batch.items()},
                {s: row[b] for s, row in xi.items()},
            )
            for b in range(sentences)
        ]
        return torch.cat(rows)


def tensor_of(result: Any) -> Tensor:
    """The model's output, whether its class returns it bare or with other things."""
    return result if isinstance(result, Tensor) else result.logits


def ids(sentences: int, seed: int = 0) -> Tensor:
    return torch.randint(3, WORDS, (sentences, LENGTH), generator=torch.Generator().manual_seed(seed))


def pairs(sentences: int) -> dict[str, Tensor]:
    return {"input_ids": ids(sentences), "decoder_input_ids": ids(sentences, 1)}


def lines(sentences: int) -> dict[str, Tensor]:
    return {"input_ids": ids(sentences)}


def floats(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


SEQ2SEQ = dict(
    vocab_size=WORDS,
    d_model=D,
    encoder_layers=LAYERS,
    decoder_layers=LAYERS,
    encoder_attention_heads=HEADS,
    decoder_attention_heads=HEADS,
    encoder_ffn_dim=17,
    decoder_ffn_dim=17,
    max_position_embeddings=40,
    dropout=0.0,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=0,
    forced_eos_token_id=None,
)
ENCODER = dict(
    vocab_size=WORDS,
    hidden_size=D,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    intermediate_size=17,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=40,
    pad_token_id=0,
)
DECODER = dict(
    vocab_size=WORDS,
    hidden_size=D,
    num_hidden_layers=LAYERS,
    num_attention_heads=2 * HEADS,
    num_key_value_heads=HEADS,
    head_dim=WIDTH,
    intermediate_size=17,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)


def hf(model: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**options))

    return build


def sites(stacks: str, path: str) -> dict[str, str]:
    """Site names of all layers of a kind, such as "encoder.{}.enc-self", with the paths of their W_O."""
    return {stacks.format(layer): path.format(layer) for layer in range(LAYERS)}


def seq2seq_sites(prefix: str) -> dict[str, str]:
    return {
        **sites("encoder.{}.enc-self", f"{prefix}encoder.layers.{{}}.self_attn.out_proj"),
        **sites("decoder.{}.dec-self", f"{prefix}decoder.layers.{{}}.self_attn.out_proj"),
        **sites("decoder.{}.cross", f"{prefix}decoder.layers.{{}}.encoder_attn.out_proj"),
    }


def seq2seq(name: str, model: str, config: str, classes: str, **options: Any) -> Family:
    return Family(
        name,
        classes,
        hf(model, config, **{**SEQ2SEQ, **options}),
        pairs,
        seq2seq_sites("model."),
        generates=True,
    )


def t5(name: str, model: str, classes: str) -> Family:
    build = hf(
        f"{model}ForConditionalGeneration",
        f"{model}Config",
        vocab_size=WORDS,
        d_model=D,
        d_kv=5,
        d_ff=17,
        num_layers=LAYERS,
        num_heads=HEADS,
        dropout_rate=0.0,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=6,
        pad_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=0,
    )
    outs = {
        **sites("encoder.{}.enc-self", "encoder.block.{}.layer.0.SelfAttention.o"),
        **sites("decoder.{}.dec-self", "decoder.block.{}.layer.0.SelfAttention.o"),
        **sites("decoder.{}.cross", "decoder.block.{}.layer.1.EncDecAttention.o"),
    }
    return Family(name, classes, build, pairs, outs, generates=True)


def decoder(name: str, model: str, classes: str, **options: Any) -> Family:
    build = hf(f"{model}ForCausalLM", f"{model}Config", **{**DECODER, **options})
    outs = sites("decoder.{}.dec-self", "model.layers.{}.self_attn.o_proj")
    return Family(name, classes, build, lines, outs, heads=2 * HEADS, generates=True)


def own() -> nn.Module:
    shape = dict(
        d_model=D,
        heads=HEADS,
        ffn=17,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        dropout=0.0,
        embeddings="tied-decoder",
    )
    return Transformer(ModelConfig(**shape), source_vocab=WORDS, target_vocab=WORDS)


FAMILIES = [
    Family(
        "our own Transformer",
        "MultiHeadAttention",
        own,
        lambda sentences: {"source": ids(sentences), "target_in": ids(sentences, 1)},
        {
            **sites("encoder.{}.enc-self", "encoder.layers.{}.self_attention.out_proj"),
            **sites("decoder.{}.dec-self", "decoder.layers.{}.self_attention.out_proj"),
            **sites("decoder.{}.cross", "decoder.layers.{}.cross_attention.out_proj"),
        },
        library="models/",
    ),
    seq2seq("Marian", "MarianMTModel", "MarianConfig", "MarianAttention"),
    seq2seq("BART", "BartForConditionalGeneration", "BartConfig", "BartAttention"),
    seq2seq("mBART", "MBartForConditionalGeneration", "MBartConfig", "MBartAttention"),
    seq2seq("M2M100, NLLB", "M2M100ForConditionalGeneration", "M2M100Config", "M2M100Attention"),
    seq2seq("Pegasus", "PegasusForConditionalGeneration", "PegasusConfig", "PegasusAttention"),
    t5("T5", "T5", "T5Attention"),
    t5("mT5", "MT5", "MT5Attention"),
    Family(
        "FSMT",
        "FSMT's Attention",
        hf(
            "FSMTForConditionalGeneration",
            "FSMTConfig",
            langs=["en", "de"],
            src_vocab_size=WORDS,
            tgt_vocab_size=WORDS,
            activation_dropout=0.0,
            attention_dropout=0.0,
            **{name: value for name, value in SEQ2SEQ.items() if name != "vocab_size"},
        ),
        # without the mask its forward asks the ids for padding, which torch.export cannot follow
        lambda sentences: {
            **pairs(sentences),
            "decoder_attention_mask": torch.ones(sentences, LENGTH, dtype=torch.long),
        },
        seq2seq_sites("model."),
        generates=True,
    ),
    Family(
        "Whisper",
        "WhisperAttention",
        hf(
            "WhisperForConditionalGeneration",
            "WhisperConfig",
            num_mel_bins=7,
            max_source_positions=LENGTH,
            max_target_positions=40,
            begin_suppress_tokens=None,
            **{name: value for name, value in SEQ2SEQ.items() if name != "max_position_embeddings"},
        ),
        lambda sentences: {
            "input_features": floats(sentences, 7, 2 * LENGTH),
            "decoder_input_ids": ids(sentences, 1),
        },
        seq2seq_sites("model."),
        generates=True,
    ),
    Family(
        "BERT",
        "BertAttention",
        hf("BertForMaskedLM", "BertConfig", **ENCODER),
        lines,
        sites("encoder.{}.enc-self", "bert.encoder.layer.{}.attention.output.dense"),
    ),
    Family(
        "RoBERTa",
        "RobertaAttention",
        hf("RobertaForMaskedLM", "RobertaConfig", **ENCODER),
        lines,
        sites("encoder.{}.enc-self", "roberta.encoder.layer.{}.attention.output.dense"),
    ),
    Family(
        "DistilBERT",
        "DistilBertSelfAttention",
        hf(
            "DistilBertForMaskedLM",
            "DistilBertConfig",
            vocab_size=WORDS,
            dim=D,
            n_layers=LAYERS,
            n_heads=HEADS,
            hidden_dim=17,
            dropout=0.0,
            attention_dropout=0.0,
            max_position_embeddings=40,
            pad_token_id=0,
        ),
        lines,
        sites("encoder.{}.enc-self", "distilbert.transformer.layer.{}.attention.out_lin"),
    ),
    Family(
        "ViT",
        "ViTAttention",
        hf(
            "ViTForImageClassification",
            "ViTConfig",
            image_size=8,
            patch_size=4,
            hidden_size=D,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=17,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        lambda sentences: {
            "pixel_values": floats(sentences, 3, 8, 8)
        },  # 4 patches and the class: LENGTH positions
        sites("encoder.{}.enc-self", "vit.layers.{}.attention.o_proj"),
    ),
    Family(
        "GPT-2",
        "GPT2Attention",
        hf(
            "GPT2LMHeadModel",
            "GPT2Config",
            vocab_size=WORDS,
            n_embd=D,
            n_layer=LAYERS,
            n_head=HEADS,
            n_positions=40,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        lines,
        sites("decoder.{}.dec-self", "transformer.h.{}.attn.c_proj"),
        turned=True,
        generates=True,
    ),
    decoder("Llama", "Llama", "LlamaAttention"),
    decoder(
        "Qwen2", "Qwen2", "Qwen2Attention", hidden_size=2 * D
    ),  # its heads have the width hidden_size / heads
    decoder("Qwen3", "Qwen3", "Qwen3Attention"),
    Family(
        "torch.nn.Transformer",
        "nn.MultiheadAttention",
        lambda: nn.Transformer(D, 2 * HEADS, LAYERS, LAYERS, 17, dropout=0.0, batch_first=True),
        lambda sentences: {"src": floats(sentences, LENGTH, D), "tgt": floats(sentences, LENGTH, D).flip(1)},
        {
            **sites("encoder.{}.enc-self", "encoder.layers.{}.self_attn.out_proj"),
            **sites("decoder.{}.dec-self", "decoder.layers.{}.self_attn.out_proj"),
            **sites("decoder.{}.cross", "decoder.layers.{}.multihead_attn.out_proj"),
        },
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
        sites("encoder.{}.enc-self", "layers.{}.self_attn.out_proj"),
        library="torch",
    ),
    Family(
        "fairseq (a stand-in of its layout)",
        "fairseq's MultiheadAttention",
        lambda: FairseqModel(WORDS, D, HEADS, LAYERS),
        lambda sentences: {"src_tokens": ids(sentences), "prev_output_tokens": ids(sentences, 1)},
        seq2seq_sites(""),
        library="stand-in",
    ),
]
BY_NAME = {family.name: family for family in FAMILIES}

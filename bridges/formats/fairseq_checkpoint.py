"""A model as a checkpoint of fairseq: checkpoint.pt and dict.SRC.txt, dict.TGT.txt, for fairseq-generate and
fairseq-interactive.

fairseq numbers <s>, <pad>, </s> and <unk> 0 to 3, and its decoder reads </s> first. What ours reads first is
another token where we trained the vocabulary: its row stands at </s> in the decoder's input table, which then
is a table of its own; </s> is never read there later. Sinusoids that are not fairseq's are written as learned
tables, which end. Heads are equally many in every layer of a stack, so a model with removed heads has no such
checkpoint.
"""

import argparse
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headgates.bridges.fairseq import FIRST, PARTS, TABLES, read
from headgates.bridges.fairseq_vocab import SPECIALS, SYMBOLS, FairseqPieces, FairseqVocab
from headgates.bridges.formats import read_about
from headgates.configs.schema import read_search
from headgates.configs.source import ForeignOptions
from headgates.data.vocab import ABOUT as VOCAB_ABOUT
from headgates.data.vocab import Vocab, Vocabulary
from headgates.gates import heads_left
from headgates.models.checkpoint import save_file
from headgates.models.positions import sinusoids
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator

NAME = "checkpoint.pt"
# rows of a table that stands for them, or as many as the model has positions if that is more: fairseq's own
# default
SINUSOIDS = 1024
EPS = 1e-5  # of fairseq's layer norms


def write(translator: Translator, folder: Path) -> None:
    """Raises ValueError, naming it, at what a checkpoint of fairseq cannot hold."""
    model, about = translator.model, read_about(folder)
    check(model)
    src, tgt = about.get("src") or "src", about.get("tgt") or "tgt"
    if src == tgt:
        raise ValueError(f"fairseq tells source and target by their languages, but both are {src!r}")
    source, target = Rows.of(translator.source_vocab), Rows.of(translator.target_vocab)
    for side, language, rows in (("src", src, source), ("tgt", tgt, target)):
        (folder / f"dict.{language}.txt").write_bytes(rows.dictionary)
        for kind, name in (("bpe", "bpe.codes"), ("sentencepiece", f"vocab.{side}.model")):
            if (given := folder / f"vocab.{side}.{kind}").is_file():
                given.rename(folder / (f"{name}.{language}" if kind == "bpe" else name))
        (folder / f"vocab.{side}.dictionary").unlink(missing_ok=True)
    (folder / VOCAB_ABOUT).unlink(missing_ok=True)
    content = {
        "args": argparse.Namespace(**options(model, src, tgt)),
        "model": weights(model, source, target),
        "optimizer_history": [
            {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    save_file(folder / NAME, content)


class CheckpointTranslator(Translator):
    """The `Translator` of such a folder, whose positions end where they are learned tables."""

    @property
    def max_positions(self) -> int | None:
        return self.model.config.max_positions if self.model.config.positions == "learned" else None


def open(folder: Path, threads: int = 0) -> CheckpointTranslator:
    """The translator of such a folder, read as any checkpoint of fairseq is. threads: of torch, so of the
    whole process; 0 leaves them. Raises ValueError at a file that is missing or broken."""
    if threads:
        torch.set_num_threads(threads)
    found, search = (
        read(str(folder / NAME), ForeignOptions()).convert().translator,
        read_search(read_about(folder)["search"], folder),
    )
    return CheckpointTranslator(found.model, found.source_vocab, found.target_vocab, search)


def check(model: Transformer) -> None:
    """Raises ValueError, naming it, at what a checkpoint of fairseq cannot hold."""
    config = model.config
    if model.heads or not all(row.all() for row in heads_left(model).values()):
        raise ValueError(
            "this system has removed heads, and fairseq's layers have equally many each: export one with all its heads, --system base"
        )
    if config.norm_eps != EPS:
        raise ValueError(
            f"fairseq's layer norms add {EPS:g} to the variance, this model's {config.norm_eps:g}"
        )
    if model.output.bias is not None and model.output.bias.any():
        raise ValueError("this model has a bias on its logits, for which fairseq has no place")


@dataclass(frozen=True)
class Rows:
    """ids: our id of each of fairseq's. first: our id of what the decoder reads first. dictionary: the
    content of the dictionary's file."""

    ids: list[int]
    first: int
    dictionary: bytes

    @classmethod
    def of(cls, vocab: Vocabulary) -> "Rows":
        """Raises ValueError at a vocabulary that fairseq cannot number."""
        specials = vocab.specials
        if isinstance(vocab, FairseqVocab | FairseqPieces):
            return cls(list(range(len(vocab))), specials.beginning, vocab.dictionary.path.read_bytes())
        own = [specials.beginning, specials.padding, specials.end, specials.unknown]
        if not isinstance(vocab, Vocab) or specials.forced or len(set(own)) < len(own):
            raise ValueError(
                f"a checkpoint of fairseq is written with a vocabulary of SentencePiece or of fairseq, not with {type(vocab).__name__}, "
                f"special tokens {specials}"
            )
        others = [i for i in range(len(vocab)) if i not in own]
        symbols = vocab.pieces(others)
        if wrong := sorted(
            {piece for piece in symbols if piece in SYMBOLS or not piece.strip() or "\n" in piece}
        ):
            raise ValueError(
                f"{vocab.path} has pieces that a dictionary of fairseq cannot: {', '.join(map(repr, wrong[:5]))}"
            )
        return cls(own + others, specials.beginning, "".join(f"{piece} 1\n" for piece in symbols).encode())


def options(model: Transformer, src: str, tgt: str) -> dict[str, Any]:
    """fairseq's options of a model, by its flat names, as it saves them in `args`."""
    config, tied = model.config, keeps_tables(model)
    found: dict[str, Any] = {
        "task": "translation", "data": ".", "source_lang": src, "target_lang": tgt, "left_pad_source": True, "left_pad_target": False,
        "arch": "transformer", "activation_fn": config.activation, "dropout": config.dropout,
        "attention_dropout": config.attention_dropout, "activation_dropout": config.dropout,
        "no_scale_embedding": not config.embedding_scale, "layernorm_embedding": config.embedding_norm,
        "share_all_embeddings": tied and config.embeddings == "tied",
        "share_decoder_input_output_embed": tied and config.embeddings != "separate",
        "adaptive_input": False, "adaptive_softmax_cutoff": None, "adaptive_softmax_dropout": 0, "tie_adaptive_weights": False,
        "no_token_positional_embeddings": False, "no_cross_attention": False, "cross_self_attention": False,
        "decoder_input_dim": config.d_model, "decoder_output_dim": config.d_model,
        "quant_noise_pq": 0, "quant_noise_pq_block_size": 8, "quant_noise_scalar": 0,
    }  # fmt: skip
    for stack, side, heads, ffn, layers in (
        ("encoder", "source", config.heads, config.ffn, config.encoder_layers),
        (
            "decoder",
            "target",
            config.heads_of_decoder,
            config.decoder_ffn or config.ffn,
            config.decoder_layers,
        ),
    ):
        found |= {
            f"{stack}_embed_dim": config.d_model, f"{stack}_embed_path": None, f"{stack}_ffn_embed_dim": ffn, f"{stack}_layers": layers,
            f"{stack}_attention_heads": heads, f"{stack}_normalize_before": config.norm_of(stack) == "pre",
            f"{stack}_learned_pos": position_table(model, side) is not None, f"max_{side}_positions": positions(model),
            f"{stack}_layerdrop": 0, f"{stack}_layers_to_keep": None,
        }  # fmt: skip
    return found


def keeps_tables(model: Transformer) -> bool:
    """Whether the decoder's input table may stay the one of its output."""
    return model.target_specials.beginning == model.target_specials.end


def positions(model: Transformer) -> int:
    """The longest sentence of the checkpoint, in tokens."""
    return (
        model.config.max_positions
        if model.config.positions == "learned"
        else max(model.config.max_positions, SINUSOIDS)
    )


def position_table(model: Transformer, side: str) -> Tensor | None:
    """The vectors (positions, D) of positions; None where they are fairseq's sinusoids."""
    config = model.config
    if config.positions == "learned":
        return getattr(model, f"{side}_positions").weight
    return (
        None
        if (config.positions, config.first_position) == ("tensor2tensor", FIRST)
        else sinusoids(config, positions(model))
    )


def weights(model: Transformer, source: Rows, target: Rows) -> "OrderedDict[str, Tensor]":
    """The model's weights under fairseq's names and in its dictionaries' order."""
    tables, parts = ({ours: theirs for theirs, ours in names.items()} for names in (TABLES, PARTS))
    found: OrderedDict[str, Tensor] = OrderedDict()
    for stack in ("encoder", "decoder"):
        # an older version says that a pre-norm stack has no norm at its end
        since = 3.0 if model.config.norm_of(stack) == "post" or model.config.has_final_norm(stack) else 1.0
        found[f"{stack}.version"] = torch.tensor([since])
    for name, tensor in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        if module in tables:
            found[f"{tables[module]}.{kind}"] = tensor
        elif ".layers." in name:
            stack, word, number, part = name.split(".", 3)
            ours = next(ours for ours in parts if part.startswith(f"{ours}."))
            found[f"{stack}.{word}.{number}.{parts[ours]}{part.removeprefix(ours)}"] = tensor
    found.pop("decoder.output_projection.bias", None)  # of zeros (`check`)
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight")
    moved: dict[int, Tensor] = {}  # a table that is two is written once
    for name, rows in zip(names, (source, target, target), strict=True):
        moved.setdefault(found[name].data_ptr(), found[name][rows.ids])
        found[name] = moved[found[name].data_ptr()]
    if not keeps_tables(model):
        inputs = found["decoder.embed_tokens.weight"] = found["decoder.embed_tokens.weight"].clone()
        inputs[SPECIALS.beginning] = model.target_embedding.weight[target.first]
    for stack, side in (("encoder", "source"), ("decoder", "target")):
        if (table := position_table(model, side)) is not None:
            found[f"{stack}.embed_positions.weight"] = torch.cat(
                [table.new_zeros(FIRST, table.shape[1]), table]
            )
    return found

"""Transformers of fairseq, in and out: `fairseq:CHECKPOINT`, with the dictionaries and BPE codes beside it.

A checkpoint is a pickle. The reader admits tensors, plain containers and argparse.Namespace, in which fairseq
keeps its options; numpy's numbers, which only its statistics hold, are passed over. Anything else is refused
by its name. Positions are numbered from 2, the padding's row and one more before them. Tables that are equal
are one; where one stack has learned positions and the other sinusoids, both become tables. A stack's norm at
its end counts only if its version buffer says so, as in fairseq.

`write` makes checkpoint.pt and dict.SRC.txt, dict.TGT.txt, for fairseq-generate. fairseq numbers <s>, <pad>,
</s> and <unk> 0 to 3, and its decoder reads </s> first. Where our decoder reads another token first, its row
stands at </s> in a decoder input table of its own. Sinusoids that are not fairseq's are written as learned
tables, which end. Layers of a stack have equally many heads, so a model with removed heads has no checkpoint.
"""

import argparse
import re
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headgates.bridges.fairseq_data import language_pairs
from headgates.bridges.fairseq_vocab import SPECIALS, SYMBOLS, FairseqPieces, FairseqVocab, fairseq_vocabs
from headgates.bridges.foreign import Converted, ForeignModel
from headgates.bridges.formats import read_about
from headgates.configs.schema import ModelConfig, SearchConfig, read_search
from headgates.configs.source import ForeignOptions
from headgates.data.vocab import ABOUT, Vocab, Vocabulary
from headgates.data.vocab import ABOUT as VOCAB_ABOUT
from headgates.gates import heads_left
from headgates.models.checkpoint import save_file
from headgates.models.positions import sinusoids
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator

FIRST = SPECIALS.padding + 1  # row of the first position

CODES = ("bpe.codes", "bpecodes", "codes", "code")

PIECES = ("sentencepiece.bpe.model", "spm.model", "vocab.model")

SEARCH = SearchConfig(max_ratio=0.0, max_extra=201)  # fairseq-generate's: 200 tokens and the end

TABLES = {  # fairseq's name -> ours, outside of layers
    "encoder.embed_tokens": "source_embedding",
    "decoder.embed_tokens": "target_embedding",
    "decoder.output_projection": "output",
    "encoder.embed_positions": "source_positions",
    "decoder.embed_positions": "target_positions",
    "encoder.layernorm_embedding": "source_norm",
    "decoder.layernorm_embedding": "target_norm",
    "encoder.layer_norm": "encoder.norm",
    "decoder.layer_norm": "decoder.norm",
}

PARTS = {  # the same in a layer
    "self_attn": "self_attention",
    "self_attn_layer_norm": "self_residual.norm",
    "encoder_attn": "cross_attention",
    "encoder_attn_layer_norm": "cross_residual.norm",
    "fc1": "feed_forward.inner",
    "fc2": "feed_forward.outer",
    "final_layer_norm": "feed_residual.norm",
}

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish"}

NOT_OURS = (  # options that change what a model computes, at any value but their default
    "adaptive_input",
    "adaptive_softmax_cutoff",
    "no_token_positional_embeddings",
    "no_cross_attention",
    "cross_self_attention",
    "char_inputs",
    "encoder_layers_to_keep",
    "decoder_layers_to_keep",
    "encoder_recurrent_stacking",
    "decoder_recurrent_stacking",
    "base_layers",
    "no_encoder_attn",
    "use_factorized_embedding",
)

NAME = "checkpoint.pt"

# rows of a table that stands for them, or as many as the model has positions if that is more: fairseq's own
# default
SINUSOIDS = 1024

EPS = 1e-5  # of fairseq's layer norms


class Unread:
    """Stands where the statistics of a training run hold numbers of numpy: takes everything and keeps
    nothing."""

    def __init__(self, *content: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        pass


NUMPY = ["ndarray", "dtype"]
NUMPY += [f"{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")]

ADMITTED: list[Any] = [argparse.Namespace, *((Unread, f"numpy.{name}") for name in NUMPY)]

STACK_NORM_SINCE = {"encoder": 2, "decoder": 3}  # lowest `version` of a stack whose norm at the end counts

NO_WEIGHTS = re.compile(r".*\.(version|embed_positions\._float_tensor|embed_positions\.weights)")

OLD_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint says of its model.

    options: by their flat names, encoder_embed_dim and so on. weights: by the names that fairseq gives them
    today, fp32. stack_norms: for encoder and decoder, whether fairseq would use a norm at its end."""

    path: Path
    options: dict[str, Any]
    weights: dict[str, Tensor]
    stack_norms: dict[str, bool]


def read(place: str, options: ForeignOptions) -> ForeignModel:
    """The model of a checkpoint. options: src_lang and tgt_lang, where no file tells them; dictionaries,
    where they lie elsewhere."""
    path = Path(place)
    folder = Path(options.dictionaries) if options.dictionaries else path.parent
    if not path.is_file():
        read_checkpoint(path)  # says what is missing
    beside = [
        *sorted(folder.glob("dict.*.txt")),
        *sorted(file for file in folder.glob("*") if is_cutter(file.name)),
    ]

    def convert() -> Converted:
        checkpoint = read_checkpoint(path)
        src, tgt = languages(checkpoint, folder, options)
        files = {
            side: tokenizer_files(folder, language, side) for side, language in (("src", src), ("tgt", tgt))
        }
        source, target = fairseq_vocabs(files["src"], files["tgt"], folder / ABOUT)
        for side, stack, vocab, language in (
            ("source", "encoder", source, src),
            ("target", "decoder", target, tgt),
        ):
            rows = table(checkpoint, f"{stack}.embed_tokens").shape[0]
            if rows != len(vocab):
                raise ValueError(
                    f"dict.{language}.txt in {folder} has {len(vocab)} entries, the four special ones "
                    f"counted, but the model has {rows} {side} embeddings; take the dictionaries that it was "
                    f"trained with: fairseq:FILE,dict=DIR"
                )
        model = converted(checkpoint, joint=source is target)
        names = {side: {name: f"vocab.{side}.{name}" for name in files[side]} for side in files}
        return Converted(
            Translator(model, source, target, SEARCH),
            {names[side][name]: file for side in files for name, file in files[side].items()},
            {"kind": "fairseq", "source": names["src"], "target": names["tgt"]},
            {
                "src": src,
                "tgt": tgt,
                "search": {"max_ratio": SEARCH.max_ratio, "max_extra": SEARCH.max_extra},
            },
        )

    return ForeignModel(path.parent.resolve().name + "-" + path.stem, [path, *beside], convert)


def is_cutter(name: str) -> bool:
    return (
        name.startswith(CODES) or name in PIECES or re.fullmatch(r"vocab\.(src|tgt)\.model", name) is not None
    )


def tokenizer_files(folder: Path, language: str, side: str) -> dict[str, Path]:
    """The dictionary of a language, and the file that cuts its words if there is one; a language's own goes
    before that of both."""
    found = {"dictionary": folder / f"dict.{language}.txt"}
    for kind, names in (("bpe", CODES), ("sentencepiece", (f"vocab.{side}.model", *PIECES))):
        files = [
            folder / each
            for name in names
            for each in (f"{name}.{language}", name)
            if (folder / each).is_file()
        ]
        if files and len(found) == 1:
            found[kind] = files[0]
    return found


def languages(checkpoint: Checkpoint, folder: Path, options: ForeignOptions) -> tuple[str, str]:
    """The source and target language: as asked for, as the checkpoint says, or as the names of binarised text
    near the dictionaries; else of the two dictionaries in the order in which they fit the model, if they fit
    it in one only."""
    own = [
        options.src_lang or checkpoint.options.get("source_lang"),
        options.tgt_lang or checkpoint.options.get("target_lang"),
    ]
    if own[0] and own[1]:
        return str(own[0]), str(own[1])
    pairs = set().union(*(language_pairs(place) for place in (folder, *sorted(folder.glob("*/")))))
    if not pairs:
        found = sorted(
            path.name.removeprefix("dict.").removesuffix(".txt") for path in folder.glob("dict.*.txt")
        )
        rows = [len(table(checkpoint, f"{stack}.embed_tokens")) for stack in ("encoder", "decoder")]
        sizes = {name: (folder / f"dict.{name}.txt").read_bytes().count(b"\n") + 4 for name in found}
        pairs = {(a, b) for a in found for b in found if a != b and [sizes[a], sizes[b]] == rows}
    pairs = {pair for pair in pairs if own[0] in (None, pair[0]) and own[1] in (None, pair[1])}
    if len(pairs) != 1:
        raise ValueError(
            f"{checkpoint.path} does not say its languages, and the files in {folder} do not either: give "
            "fairseq:FILE,src=SRC,tgt=TGT, for "
            "which there must be dict.SRC.txt and dict.TGT.txt; dict=DIR names another folder"
        )
    return pairs.pop()


def table(checkpoint: Checkpoint, name: str) -> Tensor:
    found = checkpoint.weights.get(f"{name}.weight")
    if found is None or found.dim() != 2:
        raise ValueError(
            f"{checkpoint.path} has no matrix {name}.weight; is it a translation model of fairseq, and whole?"
        )
    return found


def converted(checkpoint: Checkpoint, *, joint: bool) -> Transformer:
    """The model of a checkpoint. joint: one dictionary for both languages. Raises ValueError at what our
    Transformer has not, by name."""
    config, weights = model_config(checkpoint, joint=joint), dict(checkpoint.weights)
    for stack in ("encoder", "decoder"):
        dropped = [name for name in weights if name.startswith(f"{stack}.layer_norm.")]
        if dropped and config.norm_of(stack) == "pre" and not config.has_final_norm(stack):
            warnings.warn(
                f"{checkpoint.path}: the norm at the {stack}'s end is left out, as fairseq does, because "
                f"{stack}.version says it is of a "
                "time before it had one",
                stacklevel=2,
            )
            for name in dropped:
                del weights[name]
    position_tables(weights, config)
    ours = {our_name(name): tensor for name, tensor in weights.items()}
    vocabs = [table(checkpoint, f"{stack}.embed_tokens").shape[0] for stack in ("encoder", "decoder")]
    model = Transformer(config, vocabs[0], vocabs[1], source_specials=SPECIALS, target_specials=SPECIALS)
    expected = model.state_dict()
    for name, tensor in weights.items():
        like = expected.get(our_name(name))
        if like is None:
            raise ValueError(f"{checkpoint.path} holds {name}, for which our Transformer has no place")
        if like.shape != tensor.shape:
            raise ValueError(
                f"{checkpoint.path}: {name} has the shape {list(tensor.shape)}, expected {list(like.shape)}"
            )
    if missing := [name for name in expected if name not in ours]:
        raise ValueError(
            f"{checkpoint.path} lacks weights: there is nothing for our {', '.join(missing[:4])}; is it "
            "whole?"
        )
    model.load_state_dict(ours)
    return model.eval()


def our_name(name: str) -> str:
    """Our name of a weight, or the name itself where we have none."""
    if layer := re.fullmatch(r"((?:encoder|decoder)\.layers\.\d+)\.(\w+)\.(.+)", name):
        return f"{layer[1]}.{PARTS[layer[2]]}.{layer[3]}" if layer[2] in PARTS else name
    module, _, kind = name.rpartition(".")
    return f"{TABLES[module]}.{kind}" if module in TABLES else name


def model_config(checkpoint: Checkpoint, *, joint: bool) -> ModelConfig:
    """The settings of a checkpoint's model: widths as its weights have them, all else as its options say."""
    path, options, weights = checkpoint.path, checkpoint.options, checkpoint.weights
    refuse_options(checkpoint)
    stacks = ("encoder", "decoder")
    source, target, output = (
        table(checkpoint, name)
        for name in ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")
    )
    if source.shape[1] != target.shape[1]:
        raise ValueError(
            f"{path}: encoder and decoder are {source.shape[1]} and {target.shape[1]} wide; our "
            "Transformer has one width"
        )
    tied = output.shape == target.shape and bool(output.equal(target))
    heads, pre = (
        [options.get(f"{stack}_{name}") for stack in stacks]
        for name in ("attention_heads", "normalize_before")
    )
    if not all(isinstance(n, int) and n > 0 for n in heads):
        raise ValueError(
            f"{path}: expected options encoder_attention_heads and decoder_attention_heads, got "
            f"{heads[0]!r} and {heads[1]!r}"
        )
    norms = ["pre" if each else "post" for each in pre]
    at_end = [
        stack
        for stack in stacks
        if checkpoint.stack_norms[stack]
        and not (stack == "decoder" and options.get("no_decoder_final_norm", False))
    ]
    tables = [weights[name] for stack in stacks if (name := f"{stack}.embed_positions.weight") in weights]
    settings: dict[str, Any] = dict(
        d_model=source.shape[1],
        ffn=table(checkpoint, "encoder.layers.0.fc1").shape[0],
        decoder_ffn=table(checkpoint, "decoder.layers.0.fc1").shape[0],
        heads=heads[0],
        decoder_heads=heads[1],
        encoder_layers=layers(weights, "encoder"),
        decoder_layers=layers(weights, "decoder"),
        norm=norms[0],
        decoder_norm=norms[1],
        final_norm="both" if len(at_end) == 2 else at_end[0] if at_end else "none",
        positions="learned" if tables else "tensor2tensor",
        max_positions=min(len(each) - FIRST for each in tables) if tables else max(2, *limits(options)),
        first_position=FIRST,
        embeddings="separate" if not tied else "tied" if joint and source.equal(target) else "tied-decoder",
        activation=ACTIVATIONS[options.get("activation_fn", "relu")],
        embedding_scale=not options.get("no_scale_embedding", False),
        embedding_norm="encoder.layernorm_embedding.weight" in weights,
        dropout=float(options.get("dropout") or 0.0),
        attention_dropout=float(options.get("attention_dropout") or 0.0),
    )
    return ModelConfig(**settings)


def refuse_options(checkpoint: Checkpoint) -> None:
    """Raises ValueError, naming it, at an option that our Transformer has not."""
    path, options = checkpoint.path, checkpoint.options
    for name in NOT_OURS:
        if options.get(name):
            raise ValueError(
                f"{path} was trained with {name} = {options[name]!r}, which our Transformer has not"
            )
    if (activation := options.get("activation_fn", "relu")) not in ACTIVATIONS:
        raise ValueError(
            f"{path}: activation_fn {activation!r}; our Transformer has {', '.join(ACTIVATIONS)}"
        )
    if (task := options.get("task")) not in (None, "translation"):
        raise ValueError(
            f"{path} is a model of the task {task!r}; models of fairseq's task translation are read"
        )


def limits(options: dict[str, Any]) -> Iterator[int]:
    """fairseq's longest source and target; more than a hint of how long sentences are only where positions
    are learned."""
    for side in ("source", "target"):
        value = options.get(f"max_{side}_positions")
        yield value if isinstance(value, int) else 1024


def layers(weights: dict[str, Tensor], stack: str) -> int:
    return 1 + max(
        (int(found[1]) for name in weights if (found := re.match(rf"{stack}\.layers\.(\d+)\.", name))),
        default=-1,
    )


def position_tables(weights: dict[str, Tensor], config: ModelConfig) -> None:
    """Where positions are learned, put both stacks' tables into `weights`, without the rows before the first
    position."""
    if config.positions != "learned":
        return
    like = ModelConfig(d_model=config.d_model, positions="tensor2tensor", first_position=FIRST)
    for stack in ("encoder", "decoder"):
        name = f"{stack}.embed_positions.weight"
        weights[name] = weights[name][FIRST:] if name in weights else sinusoids(like, config.max_positions)
        weights[name] = weights[name][: config.max_positions].clone()


def read_checkpoint(path: Path) -> Checkpoint:
    """Raises ValueError at a file that is missing, broken, holds more than is admitted, or is no checkpoint
    of a translation model."""
    content = safely_loaded(path)
    tensors = content.get("model")
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ValueError(
            f"{path} is no checkpoint of fairseq: under 'model' it has no dict of tensors; it has "
            f"{named(content)}"
        )
    versions = {stack: tensors.get(f"{stack}.version", torch.ones(1)).flatten() for stack in STACK_NORM_SINCE}
    return Checkpoint(
        path,
        flat_options(content, path),
        current_names({str(name): tensor.float() for name, tensor in tensors.items()}, path),
        {
            stack: bool(len(version)) and float(version[0]) >= STACK_NORM_SINCE[stack]
            for stack, version in versions.items()
        },
    )


def safely_loaded(path: Path) -> dict[str, Any]:
    """The dict that the file holds."""
    if path.is_dir():
        found = ", ".join(sorted(file.name for file in path.glob("*.pt"))) or "none"
        raise ValueError(
            f"{path} is a folder; give a checkpoint in it, fairseq:{path}/FILE.pt: it has {found}"
        )
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}")
    try:
        with torch.serialization.safe_globals(ADMITTED), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's about the pickle's protocol: it reads it or raises
            content = torch.load(path, map_location="cpu", weights_only=True)
    # strange bytes send torch's unpickler anywhere: IndexError, KeyError, EOFError without a word
    except Exception as error:
        if refused := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(
                f"{path} holds {refused[1]}, which is not read: it could run code. Only tensors, plain "
                "containers and argparse.Namespace "
                "are; with fairseq itself, save the checkpoint again without it"
            ) from None
        words = re.search(r"WeightsUnpickler error: (.*)", str(error))
        reason = (words[1] if words else str(error)).strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"{path} is not a whole checkpoint ({reason}); copy it again") from error
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} is no checkpoint of fairseq: it holds a {type(content).__name__}, not a dict"
        )
    return content


def named(content: Mapping[Any, Any]) -> str:
    return ", ".join(sorted(map(str, content))[:12]) or "nothing"


def flat_options(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The options of task and model by their flat names: of `args` in old files, of `cfg` in newer ones."""
    cfg = content.get("cfg")
    if isinstance(cfg, dict):
        options = {
            **plain(cfg.get("task")),
            **plain(cfg.get("model")),
            "task": plain(cfg.get("task")).get("_name"),
        }
    else:
        options = plain(content.get("args"))
    if not options:
        raise ValueError(
            f"{path} does not say what its model is: it has neither 'cfg' nor 'args' with options; it has "
            f"{named(content)}"
        )
    for stack in ("encoder", "decoder"):  # fairseq-hydra-train nests them
        options |= {f"{stack}_{name}": value for name, value in plain(options.pop(stack, None)).items()}
    return options


def plain(options: Any) -> dict[str, Any]:
    """The options of a Namespace or a dict; none of anything else."""
    return (
        dict(options)
        if isinstance(options, dict)
        else dict(vars(options))
        if isinstance(options, argparse.Namespace)
        else {}
    )


def current_names(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The weights under the names of today: fused projections split into q, k, v, numbered norms named, the
    output a matrix of its own."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if NO_WEIGHTS.fullmatch(name):
            continue
        if fused := re.fullmatch(r"(.*_attn)\.in_proj_(weight|bias)", name):
            if len(tensor) % 3:
                raise ValueError(f"{path}: {name} has {len(tensor)} rows, expected those of q, k and v")
            parts = zip("qkv", tensor.chunk(3), strict=True)
            found |= {f"{fused[1]}.{letter}_proj.{fused[2]}": part for letter, part in parts}
        elif (
            norm := re.fullmatch(r"((encoder|decoder)\.layers\.\d+)\.layer_norms\.(\d)\.(\w+)", name)
        ) and int(norm[3]) < len(OLD_NORMS[norm[2]]):
            found[f"{norm[1]}.{OLD_NORMS[norm[2]][int(norm[3])]}.{norm[4]}"] = tensor
        elif name == "decoder.embed_out":
            found["decoder.output_projection.weight"] = tensor
        else:
            found[name] = tensor
    tied = found.get("decoder.embed_tokens.weight")
    if tied is not None:
        found.setdefault("decoder.output_projection.weight", tied)
    return found


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


def open(folder: Path, threads: int = 0) -> Translator:
    """The translator of such a folder, read as any checkpoint of fairseq is. threads: of torch, so of the
    whole process; 0 leaves them. Raises ValueError at a file that is missing or broken."""
    if threads:
        torch.set_num_threads(threads)
    found = read(str(folder / NAME), ForeignOptions()).convert().translator
    search = read_search(read_about(folder)["search"], folder)
    return Translator(found.model, found.source_vocab, found.target_vocab, search)


def check(model: Transformer) -> None:
    """Raises ValueError, naming it, at what a checkpoint of fairseq cannot hold."""
    config = model.config
    if model.heads or not all(row.all() for row in heads_left(model).values()):
        raise ValueError(
            "this system has removed heads, and fairseq's layers have equally many each: export one with "
            "all its heads, --system base"
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
                "a checkpoint of fairseq is written with a vocabulary of SentencePiece or of fairseq, not "
                f"with {type(vocab).__name__}, "
                f"special tokens {specials}"
            )
        others = [i for i in range(len(vocab)) if i not in own]
        symbols = vocab.pieces(others)
        if wrong := sorted(
            {piece for piece in symbols if piece in SYMBOLS or not piece.strip() or "\n" in piece}
        ):
            raise ValueError(
                f"{vocab.path} has pieces that a dictionary of fairseq cannot: "
                f"{', '.join(map(repr, wrong[:5]))}"
            )
        return cls(own + others, specials.beginning, "".join(f"{piece} 1\n" for piece in symbols).encode())


def options(model: Transformer, src: str, tgt: str) -> dict[str, Any]:
    """fairseq's options of a model, by its flat names, as it saves them in `args`."""
    config, tied = model.config, keeps_tables(model)
    found: dict[str, Any] = {
        "task": "translation",
        "data": ".",
        "source_lang": src,
        "target_lang": tgt,
        "left_pad_source": True,
        "left_pad_target": False,
        "arch": "transformer",
        "activation_fn": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.dropout,
        "no_scale_embedding": not config.embedding_scale,
        "layernorm_embedding": config.embedding_norm,
        "share_all_embeddings": tied and config.embeddings == "tied",
        "share_decoder_input_output_embed": tied and config.embeddings != "separate",
        "adaptive_input": False,
        "adaptive_softmax_cutoff": None,
        "adaptive_softmax_dropout": 0,
        "tie_adaptive_weights": False,
        "no_token_positional_embeddings": False,
        "no_cross_attention": False,
        "cross_self_attention": False,
        "decoder_input_dim": config.d_model,
        "decoder_output_dim": config.d_model,
        "quant_noise_pq": 0,
        "quant_noise_pq_block_size": 8,
        "quant_noise_scalar": 0,
    }
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
            f"{stack}_embed_dim": config.d_model,
            f"{stack}_embed_path": None,
            f"{stack}_ffn_embed_dim": ffn,
            f"{stack}_layers": layers,
            f"{stack}_attention_heads": heads,
            f"{stack}_normalize_before": config.norm_of(stack) == "pre",
            f"{stack}_learned_pos": position_table(model, side) is not None,
            f"max_{side}_positions": positions(model),
            f"{stack}_layerdrop": 0,
            f"{stack}_layers_to_keep": None,
        }
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

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headgates.bridges.exported import read_export
from headgates.bridges.foreign import (
    STACK_OF_SIDE,
    Converted,
    ForeignModel,
    fairseq_name,
    filled_model,
    position_table,
    shared_tables,
    with_one_width,
)
from headgates.configs.fields import shortened
from headgates.configs.own_file import own_file, own_files
from headgates.configs.settings import ModelConfig, SearchConfig
from headgates.configs.source import ForeignOptions
from headgates.data.fairseq_data import language_pairs
from headgates.data.fairseq_vocab import SPECIALS, SYMBOLS, DictionaryVocab, fairseq_vocabs
from headgates.data.text import reworded
from headgates.data.vocab import VOCAB_ABOUT, Vocab, Vocabulary
from headgates.gates import KINDS, heads_left
from headgates.models.checkpoint import check_packed, check_tensors, save_file
from headgates.models.description import POSITIONS, Description, table_length
from headgates.models.positions import sinusoids
from headgates.models.transformer import ACTIVATIONS, Transformer
from headgates.models.translator import Translator

FIRST = SPECIALS.padding + 1  # row of the first position

CODES = ("bpe.codes", "bpecodes", "codes", "code")

PIECE_MODELS = ("sentencepiece.bpe.model", "spm.model", "vocab.model")

BESIDE = ("dict.*.txt", "bpe.codes*", "bpecodes*", "code*", "*.model")

# fairseq-generate's: from 1 to 200 tokens, and the end
LENGTH_LIMITS: dict[str, Any] = {"max_ratio": 0.0, "max_extra": 201, "min_length": 1}

# options that change what a model computes, at any value but their default, and which our Transformer has not
NOT_OURS = (
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

# options without which some version of fairseq does not begin
ALWAYS: dict[str, Any] = {
    "task": "translation",
    "data": ".",
    "left_pad_source": True,
    "left_pad_target": False,
    "arch": "transformer",
    "adaptive_input": False,
    "adaptive_softmax_cutoff": None,
    "adaptive_softmax_dropout": 0,
    "tie_adaptive_weights": False,
    "no_token_positional_embeddings": False,
    "no_cross_attention": False,
    "cross_self_attention": False,
    "quant_noise_pq": 0,
    "quant_noise_pq_block_size": 8,
    "quant_noise_scalar": 0,
}

CHECKPOINT_FILE = "checkpoint.pt"

EPS = 1e-5  # of fairseq's layer norms

EMBEDDING_TABLES = ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")


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

OLD_NORM = re.compile(r"((?:encoder|decoder)\.layers\.\d+)\.layer_norms\.(\d)\.(\w+)")
OLD_NORMS = ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"]  # a decoder's, in order


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
    beside = {file for pattern in BESIDE for file in own_files(folder, pattern)}

    def convert() -> Converted:
        checkpoint = read_checkpoint(path)
        pair = dict(zip(("src", "tgt"), language_pair(checkpoint, folder, options), strict=True))
        found = {side: tokenizer_files(folder, language, side) for side, language in pair.items()}
        source, target = fairseq_vocabs(found["src"], found["tgt"], folder / VOCAB_ABOUT)
        for (side, stack), vocab, language in zip(
            STACK_OF_SIDE.items(), (source, target), pair.values(), strict=True
        ):
            rows = len(embedding_table(checkpoint, f"{stack}.embed_tokens"))
            if rows != len(vocab):
                raise ValueError(
                    f"dict.{language}.txt in {folder} has {len(vocab)} entries, the four special ones "
                    f"counted, but the model has {rows} {side} embeddings; take the dictionaries that it "
                    "was trained with: fairseq:FILE,dict=DIR"
                )
        names = {side: {name: f"vocab.{side}.{name}" for name in found[side]} for side in pair}
        return Converted(
            Translator(
                converted(checkpoint, joint=source is target), source, target, SearchConfig(**LENGTH_LIMITS)
            ),
            {names[side][name]: file for side in pair for name, file in found[side].items()},
            {"kind": "fairseq", "source": names["src"], "target": names["tgt"]},
            {**pair, "search": LENGTH_LIMITS},
        )

    return ForeignModel(path.parent.resolve().name + "-" + path.stem, [path, *sorted(beside)], convert)


def tokenizer_files(folder: Path, language: str, side: str) -> dict[str, Path]:
    """The dictionary of a language, and the file that cuts its words if there is one; a language's own goes
    before that of both."""
    found = {"dictionary": own_file(folder, f"dict.{language}.txt")}
    for kind, names in (("bpe", CODES), ("sentencepiece", (f"vocab.{side}.model", *PIECE_MODELS))):
        files = [
            own_file(folder, each)
            for name in names
            for each in (f"{name}.{language}", name)
            if (folder / each).is_file()
        ]
        if files and len(found) == 1:
            found[kind] = files[0]
    return found


def language_pair(checkpoint: Checkpoint, folder: Path, options: ForeignOptions) -> tuple[str, str]:
    """The source and target language: as asked for, as the checkpoint says, or as the names of binarised text
    near the dictionaries."""
    own = [
        getattr(options, f"{short}_lang") or checkpoint.options.get(f"{side}_lang")
        for short, side in (("src", "source"), ("tgt", "target"))
    ]
    if not all(own):
        near = {pair for place in (folder, *folder.glob("*/")) for pair in language_pairs(place)}
        pairs = [pair for pair in near if own[0] in (None, pair[0]) and own[1] in (None, pair[1])]
        if len(pairs) != 1:
            raise ValueError(
                f"{checkpoint.path} does not say its languages, nor does binarised text near {folder}: give "
                "fairseq:FILE,src=SRC,tgt=TGT, for which there must be dict.SRC.txt and dict.TGT.txt; "
                "dict=DIR names another folder"
            )
        own = list(pairs[0])
    return str(own[0]), str(own[1])


def embedding_table(checkpoint: Checkpoint, name: str) -> Tensor:
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
    for stack in STACK_OF_SIDE.values():
        dropped = [name for name in weights if name.startswith(f"{stack}.layer_norm.")]
        if dropped and config.norm_of(stack) == "pre" and not config.has_final_norm(stack):
            warnings.warn(
                f"{checkpoint.path}: the norm at the {stack}'s end is left out, as fairseq does, because "
                f"{stack}.version says it is of a time before it had one",
                stacklevel=2,
            )
            for name in dropped:
                del weights[name]
        if config.positions == "learned":  # both stacks', without the rows before the first position
            name = f"{stack}.embed_positions.weight"
            like = ModelConfig(d_model=config.d_model, positions="tensor2tensor", first_position=FIRST)
            known = weights[name][FIRST:] if name in weights else sinusoids(like, config.max_positions)
            weights[name] = known[: config.max_positions].clone()
    source, target = (len(embedding_table(checkpoint, name)) for name in EMBEDDING_TABLES[:2])
    with torch.device("meta"):
        ours = {fairseq_name(name): name for name in Transformer(config, source, target).state_dict()}
    state = {ours.get(name, name): tensor for name, tensor in weights.items()}
    return filled_model(config, (source, target), state, checkpoint.path, specials=(SPECIALS, SPECIALS))


def model_config(checkpoint: Checkpoint, *, joint: bool) -> ModelConfig:
    """The settings of a checkpoint's model: widths as its weights have them, all else as its options say."""
    path, options, weights = checkpoint.path, checkpoint.options, checkpoint.weights
    refuse_options(checkpoint)
    source, target, output = (embedding_table(checkpoint, name) for name in EMBEDDING_TABLES)
    embeddings = shared_tables(source, target, output)
    heads, pre = (
        [options.get(f"{stack}_{name}") for stack in STACK_OF_SIDE.values()]
        for name in ("attention_heads", "normalize_before")
    )
    if not all(isinstance(n, int) and n > 0 for n in heads):
        raise ValueError(
            f"{path}: expected options encoder_attention_heads and decoder_attention_heads, got "
            f"{heads[0]!r} and {heads[1]!r}"
        )
    norms = ["pre" if each else "post" for each in pre]
    at_end = dict(checkpoint.stack_norms)
    at_end["decoder"] &= not options.get("no_decoder_final_norm", False)
    tables = [each for name, each in weights.items() if name.endswith("embed_positions.weight")]
    # fairseq's longest source and target: more than a hint only where positions are learned
    longest = [options.get(f"max_{side}_positions") for side in STACK_OF_SIDE]
    settings: dict[str, Any] = dict(
        d_model=source.shape[1],
        ffn=len(embedding_table(checkpoint, "encoder.layers.0.fc1")),
        decoder_ffn=len(embedding_table(checkpoint, "decoder.layers.0.fc1")),
        heads=heads[0],
        decoder_heads=heads[1],
        encoder_layers=layers(weights, "encoder"),
        decoder_layers=layers(weights, "decoder"),
        norm=norms[0],
        decoder_norm=norms[1],
        final_norm="both"
        if all(at_end.values())
        else next((each for each in at_end if at_end[each]), "none"),
        positions="learned" if tables else "tensor2tensor",
        max_positions=min(len(each) - FIRST for each in tables)
        if tables
        else max(2, *(most if isinstance(most, int) else POSITIONS for most in longest)),
        first_position=FIRST,
        embeddings="tied-decoder" if embeddings == "tied" and not joint else embeddings,
        activation=options.get("activation_fn", "relu"),
        embedding_scale=not options.get("no_scale_embedding", False),
        embedding_norm="encoder.layernorm_embedding.weight" in weights,
        dropout=number_option(options, "dropout"),
        attention_dropout=number_option(options, "attention_dropout"),
    )
    return ModelConfig(**settings)


def refuse_options(checkpoint: Checkpoint) -> None:
    """Raises ValueError, naming it, at an option that our Transformer has not."""
    path, options = checkpoint.path, checkpoint.options
    for name in NOT_OURS:
        if options.get(name):
            raise ValueError(
                f"{path} was trained with {name} = {options[name]}, which our Transformer has not"
            )
    if (activation := options.get("activation_fn", "relu")) not in ACTIVATIONS:
        raise ValueError(
            f"{path}: activation_fn {activation!r}; our Transformer has {', '.join(ACTIVATIONS)}"
        )
    if (task := options.get("task")) not in (None, "translation"):
        raise ValueError(
            f"{path} is a model of the task {task!r}; models of fairseq's task translation are read"
        )


def number_option(options: Mapping[str, Any], name: str) -> float:
    found = options.get(name) or 0.0
    if not isinstance(found, int | float):
        raise ValueError(f"{name} is {found}; expected a number")
    return float(found)


def layers(weights: dict[str, Tensor], stack: str) -> int:
    return len({name.split(".")[2] for name in weights if name.startswith(f"{stack}.layers.")})


def read_checkpoint(path: Path) -> Checkpoint:
    """Raises ValueError at a file that is missing, broken, holds more than is admitted, or is no checkpoint
    of a translation model."""
    content = safely_loaded(path)
    tensors = content.get("model")
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ValueError(
            f"{path} is no checkpoint of fairseq: under 'model' it has no dict of tensors; it has "
            f"{', '.join(sorted(map(str, content))[:12])}"
        )
    with reworded(f"{path} is no checkpoint of a model", "copy it again"):
        check_tensors(tensors)
    versions = {stack: tensors.get(f"{stack}.version", torch.ones(1)).flatten() for stack in STACK_NORM_SINCE}
    return Checkpoint(
        path,
        flat_options(content, path),
        current_names({str(name): tensor.float() for name, tensor in tensors.items()}),
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
    check_packed(path)
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


def flat_options(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The options of task and model by their flat names: of `args` in old files, of `cfg` in newer ones. What
    is no number or name is one that only says what it is."""
    cfg = content.get("cfg")
    if isinstance(cfg, dict):
        task = plain_options(cfg.get("task"))
        options = {**task, **plain_options(cfg.get("model")), "task": task.get("_name")}
    else:
        options = plain_options(content.get("args"))
    if not options:
        raise ValueError(f"{path} does not say what its model is: neither 'cfg' nor 'args' has options")
    for stack in STACK_OF_SIDE.values():  # fairseq-hydra-train nests them
        options |= {
            f"{stack}_{name}": value for name, value in plain_options(options.pop(stack, None)).items()
        }
    kept = str | int | float | None
    return {name: shortened(v) if v and not isinstance(v, kept) else v for name, v in options.items()}


def plain_options(options: Any) -> dict[str, Any]:
    """The options of a Namespace or a dict; none of anything else."""
    if isinstance(options, argparse.Namespace):
        options = vars(options)
    return dict(options) if isinstance(options, dict) else {}


def current_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the names of today: fused projections split into q, k, v, numbered norms named, the
    output a matrix of its own."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if NO_WEIGHTS.fullmatch(name):
            continue
        if fused := re.fullmatch(r"(.*_attn)\.in_proj_(weight|bias)", name):
            parts = zip("qkv", tensor.chunk(3), strict=False)
            found |= {f"{fused[1]}.{letter}_proj.{fused[2]}": part for letter, part in parts}
        elif norm := OLD_NORM.fullmatch(name):
            names = OLD_NORMS[::2] if name.startswith("encoder") else OLD_NORMS
            number = int(norm[2])
            found[f"{norm[1]}.{names[number]}.{norm[3]}" if number < len(names) else name] = tensor
        elif name == "decoder.embed_out":
            found["decoder.output_projection.weight"] = tensor
        else:
            found[name] = tensor
    if "decoder.embed_tokens.weight" in found:
        found.setdefault("decoder.output_projection.weight", found["decoder.embed_tokens.weight"])
    return found


def write(translator: Translator, folder: Path) -> None:
    """Raises ValueError, naming it, at what a checkpoint of fairseq cannot hold."""
    model, about = translator.model, read_export(folder)
    check_for_fairseq(model)
    model = with_one_width(model)
    src, tgt = about.get("src") or "src", about.get("tgt") or "tgt"
    if src == tgt:
        raise ValueError(f"fairseq tells source and target by their languages, but both are {src!r}")
    ids = []
    for side, language, vocab in (
        ("src", src, translator.source_vocab),
        ("tgt", tgt, translator.target_vocab),
    ):
        own, dictionary = numbered_dictionary(vocab)
        ids.append(own)
        (folder / f"dict.{language}.txt").write_bytes(dictionary)
        for kind, name in (("bpe", "bpe.codes"), ("sentencepiece", f"vocab.{side}.model")):
            if (given := folder / f"vocab.{side}.{kind}").is_file():
                given.rename(folder / (f"{name}.{language}" if kind == "bpe" else name))
        (folder / f"vocab.{side}.dictionary").unlink(missing_ok=True)
    (folder / VOCAB_ABOUT).unlink(missing_ok=True)
    content = {
        "args": argparse.Namespace(**options(model, src, tgt)),
        "model": fairseq_weights(model, *ids),
        "optimizer_history": [
            {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    save_file(folder / CHECKPOINT_FILE, content)


def open(folder: Path, shape: Description, threads: int) -> Translator:
    """The translator of such a folder, read as any checkpoint of fairseq is. Raises ValueError at a file that
    is missing or broken."""
    return read(str(folder / CHECKPOINT_FILE), ForeignOptions()).convert().translator


def check_for_fairseq(model: Transformer) -> None:
    """Raises ValueError, naming it, at what a checkpoint of fairseq cannot hold."""
    config = model.config
    own_heads = any(site.endswith(KINDS) for site in model.heads)
    if own_heads or not all(row.all() for row in heads_left(model).values()):
        raise ValueError(
            "this system has removed heads, and fairseq's layers have equally many each: take --to onnx, "
            "ct2 or hf, or, of a run with gates, --system base"
        )
    plain = {"norm_kind": "layer", "feed_forward": "plain", "biases": True, "head_width": 0}
    for name, value in plain.items():
        if (own := getattr(config, name)) != value:
            raise ValueError(f"fairseq's layers have {name} {value!r}, this model's {own!r}: take --to onnx")
    if config.positions == "relative":
        raise ValueError("fairseq adds positions to embeddings, this model to scores: take --to onnx")
    if config.norm_eps != EPS:
        raise ValueError(
            f"fairseq's layer norms add {EPS:g} to the variance, this model's {config.norm_eps:g}"
        )
    if model.output.bias is not None and model.output.bias.any():
        raise ValueError("this model has a bias on its logits, for which fairseq has no place")


def numbered_dictionary(vocab: Vocabulary) -> tuple[list[int], bytes]:
    """Our id of each of fairseq's, and the content of the dictionary's file. Raises ValueError at a
    vocabulary that fairseq cannot number."""
    specials = vocab.specials
    if isinstance(vocab, DictionaryVocab):
        return list(range(len(vocab))), vocab.dictionary.path.read_bytes()
    own = [specials.beginning, specials.padding, specials.end, specials.unknown]
    if not isinstance(vocab, Vocab) or specials.forced or len(set(own)) < len(own):
        raise ValueError(
            "a checkpoint of fairseq is written with a vocabulary of SentencePiece or of fairseq, not "
            f"with {type(vocab).__name__}, special tokens {specials}"
        )
    others = [i for i in range(len(vocab)) if i not in own]
    symbols = vocab.pieces(others)
    if wrong := [each for each in symbols if each in SYMBOLS or not each.strip() or "\n" in each]:
        raise ValueError(
            f"{vocab.path} has pieces that a dictionary of fairseq cannot: {', '.join(map(repr, wrong[:5]))}"
        )
    return own + others, "".join(f"{piece} 1\n" for piece in symbols).encode()


def options(model: Transformer, src: str, tgt: str) -> dict[str, Any]:
    """fairseq's options of a model, by its flat names, as it saves them in `args`."""
    config, tied = model.config, keeps_tables(model)
    found = ALWAYS | {
        "source_lang": src,
        "target_lang": tgt,
        "activation_fn": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.dropout,
        "no_scale_embedding": not config.embedding_scale,
        "layernorm_embedding": config.embedding_norm,
        "share_all_embeddings": tied and config.embeddings == "tied",
        "share_decoder_input_output_embed": tied and config.embeddings != "separate",
        "decoder_input_dim": config.d_model,
        "decoder_output_dim": config.d_model,
        "encoder_ffn_embed_dim": config.ffn,
        "encoder_layers": config.encoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_ffn_embed_dim": config.decoder_ffn or config.ffn,
        "decoder_layers": config.decoder_layers,
        "decoder_attention_heads": config.heads_of_decoder,
    }
    for side, stack in STACK_OF_SIDE.items():
        found |= {
            f"{stack}_embed_dim": config.d_model,
            f"{stack}_embed_path": None,
            f"{stack}_normalize_before": config.norm_of(stack) == "pre",
            f"{stack}_learned_pos": has_table(model),
            f"max_{side}_positions": table_length(config),
            f"{stack}_layerdrop": 0,
            f"{stack}_layers_to_keep": None,
        }
    return found


def keeps_tables(model: Transformer) -> bool:
    """Whether the decoder's input table may stay the one of its output."""
    return model.target_specials.beginning == model.target_specials.end


def has_table(model: Transformer) -> bool:
    """Whether positions are written as a table: they are not fairseq's sinusoids."""
    return (model.config.positions, model.config.first_position) != ("tensor2tensor", FIRST)


def fairseq_weights(model: Transformer, source: list[int], target: list[int]) -> dict[str, Tensor]:
    """The model's weights under fairseq's names and in its dictionaries' order."""
    found: dict[str, Tensor] = {}
    for stack in STACK_OF_SIDE.values():
        # an older version says that a pre-norm stack has no norm at its end
        since = 3.0 if model.config.norm_of(stack) == "post" or model.config.has_final_norm(stack) else 1.0
        found[f"{stack}.version"] = torch.tensor([since])
    found.update((fairseq_name(name), tensor) for name, tensor in model.state_dict().items())
    found.pop("decoder.output_projection.bias", None)  # of zeros (`check_for_fairseq`)
    moved: dict[int, Tensor] = {}  # a table that is two is written once
    for name, ids in zip(
        (f"{table}.weight" for table in EMBEDDING_TABLES), (source, target, target), strict=True
    ):
        place = found[name].data_ptr()
        found[name] = moved[place] = moved.get(place, found[name][ids])
    if not keeps_tables(model):
        inputs = found["decoder.embed_tokens.weight"] = found["decoder.embed_tokens.weight"].clone()
        inputs[SPECIALS.beginning] = model.target_embedding.weight[model.target_specials.beginning]
    for side, stack in STACK_OF_SIDE.items():
        if has_table(model):
            found[f"{stack}.embed_positions.weight"] = F.pad(position_table(model, side), (0, 0, FIRST, 0))
    return found

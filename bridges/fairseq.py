"""Transformers of fairseq: `fairseq:CHECKPOINT`, with the dictionaries and BPE codes beside it.

Positions are numbered from 2, the padding's row and one more before them. Tables that are equal are one;
where one stack has learned positions and the other sinusoids, both become tables. A stack's norm at its end
counts only if its version buffer says so, as in fairseq.
"""

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from headgates.bridges.fairseq_data import language_pairs
from headgates.bridges.fairseq_file import Checkpoint, read_checkpoint
from headgates.bridges.fairseq_vocab import SPECIALS, fairseq_vocabs
from headgates.bridges.foreign import Converted, ForeignModel
from headgates.configs.schema import ModelConfig, SearchConfig
from headgates.configs.source import ForeignOptions
from headgates.data.vocab import ABOUT
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
    "adaptive_input", "adaptive_softmax_cutoff", "no_token_positional_embeddings", "no_cross_attention", "cross_self_attention",
    "char_inputs", "encoder_layers_to_keep", "decoder_layers_to_keep", "encoder_recurrent_stacking", "decoder_recurrent_stacking",
    "base_layers", "no_encoder_attn", "use_factorized_embedding",
)  # fmt: skip


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
                    f"dict.{language}.txt in {folder} has {len(vocab)} entries, the four special ones counted, but the model has {rows} "
                    f"{side} embeddings; take the dictionaries that it was trained with: --dictionaries DIR"
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
            f"{checkpoint.path} does not say its languages, and the files in {folder} do not either: give --src-lang and --tgt-lang, for "
            "which there must be dict.SRC.txt and dict.TGT.txt; --dictionaries names another folder"
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
                f"{checkpoint.path}: the norm at the {stack}'s end is left out, as fairseq does, because {stack}.version says it is of a "
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
            f"{checkpoint.path} lacks weights: there is nothing for our {', '.join(missing[:4])}; is it whole?"
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
            f"{path}: encoder and decoder are {source.shape[1]} and {target.shape[1]} wide; our Transformer has one width"
        )
    tied = output.shape == target.shape and bool(output.equal(target))
    heads, pre = (
        [options.get(f"{stack}_{name}") for stack in stacks]
        for name in ("attention_heads", "normalize_before")
    )
    if not all(isinstance(n, int) and n > 0 for n in heads):
        raise ValueError(
            f"{path}: expected options encoder_attention_heads and decoder_attention_heads, got {heads[0]!r} and {heads[1]!r}"
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

"""Models of Marian (marian-nmt.github.io), in and out: OPUS-MT's, Mozilla's and Bergamot's, as .npz or .bin.
Junczys-Dowmunt et al. 2018 (P18-4020).

    python translate.py marian:opus-mt-en-fr < in.txt   # or a model and its vocabularies
    python prune.py marian:model.npz --data DATA --src en --tgt fr

A model file holds arrays by name and the model's settings as YAML text; nothing in it can run code. Marian's
matrices are (inputs, outputs), the transpose of torch's, unless they embed; its vectors are (1, outputs). Its
decoder begins with an embedding of 0, which here is that of one more token, padding and beginning at once.
What one side has and the other has not is refused by the setting's name; so is an array that nothing reads.

A .bin is, little-endian: uint64 version 1, uint64 n; n headers of four uint64 (length of the name with its
final 0, type, number of dimensions, bytes of data); the n names; all dimensions, int32; uint64 bytes of
padding and so many; then the data in order. A matrix of type intgemm8 is int8 numbers and after them the
float32 that they were multiplied by; it is stored transposed unless it embeds.

`write` makes model.npz, decoder.yml and the vocabularies, as marian-decoder reads them. Every attention of a
Marian model has all of its heads, so removed ones are heads of zeros: the same translations, not a smaller
model.
"""

import math
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml

from headgates.bridges.foreign import Converted, ForeignModel
from headgates.bridges.formats import read_about
from headgates.bridges.marian_vocab import MarianVocab, read_sides
from headgates.configs.fields import shortened
from headgates.configs.schema import ModelConfig, read_search
from headgates.configs.source import ForeignOptions
from headgates.data.vocab import load_vocabs
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator

Arrays = dict[str, np.ndarray]

SETTINGS = "special:model.yml"

FLOAT32, INT8, INTGEMM8 = 0x404, 0x101, 0x4101

MOST_DIMENSIONS = 8

OUTPUT_BIAS = "decoder_ff_logit_out_b"

MODEL = "model.npz"

CURE = "take --to torch or onnx"

NEVER = -1000.0  # logit of the token that Marian does not have: its probability is 0

GELU = 1.702  # Marian's gelu is x sigmoid(1.702 x), a swish of a scaled number

ONLY: dict[
    str, tuple[Any, ...]
] = {  # settings that can have these values alone; the first is what a file without them means
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-ffn-activation": ("swish", "relu", "gelu"),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-no-projection": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-train-positions": (False,),
    "transformer-train-position-embeddings": (False,),
    "transformer-pool": (False,),
    "lemma-dim-emb": (0,),
    "right-left": (False,),
    "ulr": (False,),
}

# operations but dropout before, after and at the end of a stack -> ModelConfig's norm and final_norm
NORMS: dict[tuple[str, ...], tuple[Literal["pre", "post"], Literal["both", "none"]]] = {
    ("", "an", ""): ("post", "none"),
    ("n", "a", ""): ("pre", "none"),
    ("n", "a", "n"): ("pre", "both"),
}

CAN_BE: dict[
    str, tuple[Any, ...]
] = {  # settings of ModelConfig in which Marian has no choice, or a smaller one
    "positions": ("tensor2tensor",),
    "first_position": (0,),
    "embedding_scale": (True,),
    "activation": ("relu", "swish"),
    "decoder_norm": ("same",),
    "final_norm": ("both", "none"),
    "decoder_heads": (0,),
    "norm_eps": (1e-6,),
}

ALWAYS: dict[str, Any] = {  # settings without which some version of Marian does not begin
    "type": "transformer",
    "version": "v1.9.56",
    "input-types": [],
    "skip": False,
    "layer-normalization": False,
    "right-left": False,
    "ulr": False,
    "lemma-dim-emb": 0,
    "output-omit-bias": False,
    "tied-embeddings-src": False,
    "enc-cell": "gru",
    "enc-cell-depth": 1,
    "enc-type": "bidirectional",
    "dec-cell-base-depth": 2,
    "dec-cell-high-depth": 1,
    "dim-rnn": 1024,
    "transformer-ffn-depth": 2,
    "transformer-pool": False,
    "transformer-no-projection": False,
    "transformer-guided-alignment-layer": "last",
    "transformer-tied-layers": [],
    "transformer-train-position-embeddings": False,
    "transformer-aan-activation": "swish",
    "transformer-aan-depth": 2,
    "transformer-aan-nogate": False,
    "transformer-dim-aan": 2048,
}


def layer_names(config: ModelConfig, decoder_numbers: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Yield (name in the state dict, Marian's) of all parameters but tables and the output's.
    decoder_numbers: the number, from 1, by which Marian calls the layer whose weights each decoder layer
    has."""
    for i in range(config.encoder_layers):
        yield from _layer(config, "encoder", i, i + 1)
    for i, number in enumerate(decoder_numbers):
        yield from _layer(config, "decoder", i, number)
    for stack, side in (("encoder", "source"), ("decoder", "target")):
        if config.embedding_norm:
            yield from _norm(f"{side}_norm", f"{stack}_emb_ln", "_pre")
        if config.has_final_norm(stack):
            yield from _norm(f"{stack}.norm", f"{stack}_top_ln")


def _layer(config: ModelConfig, stack: str, i: int, number: int) -> Iterator[tuple[str, str]]:
    ours, theirs = f"{stack}.layers.{i}", f"{stack}_l{number}"
    before = "_pre" if config.norm_of(stack) == "pre" else ""
    attentions = [("self", "self")] if stack == "encoder" else [("self", "self"), ("cross", "context")]
    if stack == "decoder" and config.decoder_mixer == "ssru":
        attentions = attentions[1:]
        unit, rnn = f"{ours}.self_attention", f"{theirs}_rnn"
        yield from [
            (f"{unit}.update.weight", f"{rnn}_W"),
            (f"{unit}.forget.weight", f"{rnn}_Wf"),
            (f"{unit}.forget.bias", f"{rnn}_bf"),
        ]
        yield from _norm(f"{ours}.self_residual.norm", f"{rnn}_ln" if before else f"{rnn}_ffn_ln", before)
    for name, their_name in attentions:
        for each in ("q", "k", "v"):
            yield from _linear(f"{ours}.{name}_attention.{each}_proj", f"{theirs}_{their_name}", each)
        yield from _linear(f"{ours}.{name}_attention.out_proj", f"{theirs}_{their_name}", "o")
        yield from _norm(f"{ours}.{name}_residual.norm", f"{theirs}_{their_name}_Wo_ln", before)
    for each, suffix in (("inner", "1"), ("outer", "2")):
        yield from _linear(f"{ours}.feed_forward.{each}", f"{theirs}_ffn", suffix)
    yield from _norm(f"{ours}.feed_residual.norm", f"{theirs}_ffn_ffn_ln", before)


def _linear(ours: str, prefix: str, suffix: str) -> Iterator[tuple[str, str]]:
    yield from [(f"{ours}.weight", f"{prefix}_W{suffix}"), (f"{ours}.bias", f"{prefix}_b{suffix}")]


def _norm(ours: str, prefix: str, suffix: str = "") -> Iterator[tuple[str, str]]:
    yield from [(f"{ours}.weight", f"{prefix}_scale{suffix}"), (f"{ours}.bias", f"{prefix}_bias{suffix}")]


def table_names(config: ModelConfig) -> dict[str, str]:
    """Marian's names of the tables (V, D) of a model: one where the settings share it."""
    if config.embeddings == "tied":
        return {"source_embedding": "Wemb", "target_embedding": "Wemb", "output": "Wemb"}
    output = "decoder_Wemb" if config.embeddings == "tied-decoder" else "decoder_ff_logit_out_Wt"
    return {"source_embedding": "encoder_Wemb", "target_embedding": "decoder_Wemb", "output": output}


def read(place: str, options: ForeignOptions) -> ForeignModel:
    """PLACE: a folder, or a .npz or .bin with its vocabularies beside it. Raises ValueError where one of them
    is not found."""
    files = find_files(Path(place))
    paths = [files.model, *dict.fromkeys(path for path in (*files.vocabularies, *files.cutters) if path)]
    return ForeignModel(files.model.resolve().parent.name, paths, lambda: convert(files, options.tgt_lang))


@dataclass(frozen=True)
class Files:
    """vocabularies, cutters: of source and target, the same file twice where joint. search: settings of a
    run's."""

    model: Path
    vocabularies: tuple[Path, Path]
    cutters: tuple[Path | None, Path | None]
    search: dict[str, Any]


def find_files(place: Path) -> Files:
    """What decoder.yml (or another YAML file with `models` and `vocabs`) names, or else the model and the
    vocabularies that lie there."""
    folder = place if place.is_dir() else place.parent
    if not place.exists():
        raise ValueError(f"there is no {place}; expected a folder, or a .npz or .bin of Marian's")
    configs = {
        path: read_yaml(path, path.read_bytes())
        for path in sorted([*folder.glob("decoder.yml"), *folder.glob("config*.yml")])
    }
    config = next((each for each in configs.values() if {"models", "vocabs"} <= each.keys()), {})
    for name in ("models", "vocabs"):
        if not isinstance(config.get(name, []), list):
            raise ValueError(
                f"{folder}: `{name}` in its YAML is {shortened(config[name])}, expected a list of file "
                "names; copy it again"
            )
    models = [place] if place.is_file() else [folder / str(name) for name in config.get("models", [])]
    models = models or sorted(
        path
        for path in folder.iterdir()
        if path.suffix in (".npz", ".bin") and not path.name.startswith("lex")
    )
    if len(models) != 1:
        found = ", ".join(path.name for path in models) or "none"
        raise ValueError(
            f"{folder}: expected one model, .npz or .bin, got {found}; name its file instead of the folder"
        )
    vocabularies = [folder / str(name) for name in config.get("vocabs", [])]
    vocabularies = vocabularies or sorted([*folder.glob("*vocab*.spm"), *folder.glob("*vocab*.yml")])
    if len(vocabularies) == 2 and "vocabs" not in config:
        vocabularies.sort(key=lambda path: path.name.startswith(("trg", "target")))
        if not vocabularies[1].name.startswith(("trg", "target")):
            vocabularies = []
    if len(vocabularies) not in (1, 2):
        raise ValueError(
            f"{folder}: cannot tell the vocabularies of {models[0].name}; write them into decoder.yml "
            "beside it, "
            f"with `models: [{models[0].name}]` and `vocabs: [SOURCE, TARGET]`"
        )
    for path in (*models, *vocabularies):
        if not path.is_file():
            raise ValueError(f"there is no {path}, which the files beside it name; copy it there")
    cutters = [folder / name if (folder / name).is_file() else None for name in ("source.spm", "target.spm")]
    pairs = list(zip((vocabularies[0], vocabularies[-1]), cutters, strict=True))
    source, target = (None if path.suffix == ".spm" else cutter for path, cutter in pairs)
    names = {"beam-size": "beam", "normalize": "length_penalty", "max-length-factor": "max_ratio"}
    search = {
        our_name: config[name]
        for name, our_name in names.items()
        if isinstance(config.get(name), int | float)
    }
    return Files(models[0], (vocabularies[0], vocabularies[-1]), (source, target), search)


def convert(files: Files, language: str | None) -> Converted:
    """The model as one of ours. language: of a model of many, the one to write: `fra` for the token
    >>fra<<."""
    arrays, settings = load(files.model)
    try:
        config, numbers = model_config(settings)
        state = parameters(config, arrays, numbers, settings)
    except ValueError as error:
        raise ValueError(f"{files.model}: {error}") from error
    sizes = [len(state[f"{side}_embedding.weight"]) - 1 for side in ("source", "target")]
    marked = None if language is None else f">>{language}<<"
    source, target = read_sides(files.vocabularies, files.cutters, sizes, marked)
    model = Transformer(
        config, sizes[0] + 1, sizes[1] + 1, source_specials=source.specials, target_specials=target.specials
    )
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{files.model}: its arrays do not have the sizes that its {SETTINGS} says: {reason}"
        ) from error
    names = {
        path: f"vocab{i}{path.suffix}"
        for i, path in enumerate(dict.fromkeys((*files.vocabularies, *files.cutters)))
        if path
    }
    about = {
        "kind": "marian",
        "files": [names[path] for path in files.vocabularies],
        "cutters": [None if path is None else names[path] for path in files.cutters],
        "sizes": sizes,
        "language": marked,
    }
    run = {"search": files.search, "text": {"joint": config.embeddings == "tied"}}
    translator = Translator(model.eval(), source, target, read_search(files.search, files.model.parent))
    return Converted(translator, {name: path for path, name in names.items()}, about, run)


def model_config(settings: dict[str, Any]) -> tuple[ModelConfig, list[int]]:
    """The settings as ours, and by which number, from 1, each decoder layer's weights are called. ValueError
    at what we have not."""
    for name, values in ONLY.items():
        if settings.get(name, values[0]) not in values:
            raise ValueError(
                f"{name} {settings[name]!r} is not supported; expected {' or '.join(map(repr, values))}"
            )
    ssru = settings.get("transformer-decoder-autoreg") == "rnn"
    if ssru and (settings.get("dec-cell") != "ssru" or settings.get("layer-normalization")):
        raise ValueError(
            f"dec-cell {settings.get('dec-cell')!r} is not supported; expected 'ssru', without "
            "layer-normalization"
        )
    names = ("transformer-preprocess", "transformer-postprocess", "transformer-postprocess-top")
    operations = tuple(str(settings.get(name) or "").replace("d", "") for name in names)
    if operations not in NORMS:
        given = ", ".join(f"{name} {settings.get(name)!r}" for name in names)
        raise ValueError(
            f"{given} are not supported; expected post-norm ('', 'dan', '') or pre-norm ('n', 'da', 'n')"
        )
    embedding = str(settings.get("transformer-postprocess-emb") or "").replace("d", "")
    if embedding not in ("", "n"):
        raise ValueError(
            f"transformer-postprocess-emb {settings['transformer-postprocess-emb']!r} is not supported; "
            "expected 'd' or 'nd'"
        )
    norm, final_norm = NORMS[operations]
    tied = [settings.get(f"tied-embeddings{each}", False) for each in ("-all", "-src", "")]
    config = ModelConfig(
        d_model=whole(settings, "dim-emb"),
        ffn=whole(settings, "transformer-dim-ffn"),
        decoder_ffn=whole(settings, "transformer-decoder-dim-ffn", 0),
        heads=whole(settings, "transformer-heads"),
        encoder_layers=whole(settings, "enc-depth"),
        decoder_layers=whole(settings, "dec-depth"),
        norm=norm,
        final_norm=final_norm,
        norm_eps=1e-6,
        positions="tensor2tensor",
        embeddings="tied" if tied[0] or (tied[1] and tied[2]) else "tied-decoder" if tied[2] else "separate",
        embedding_norm=embedding == "n",
        activation="relu" if settings.get("transformer-ffn-activation") == "relu" else "swish",
        output_bias=True,
        decoder_mixer="ssru" if ssru else "attention",
    )
    if config.d_model % 2 or config.d_model % config.heads:
        raise ValueError(
            f"dim-emb {config.d_model} cannot be split into {config.heads} transformer-heads of an even sum"
        )
    numbers = settings.get("transformer-tied-layers") or list(range(1, config.decoder_layers + 1))
    if (
        not isinstance(numbers, list)
        or len(numbers) != config.decoder_layers
        or not all(type(each) is int for each in numbers)
    ):
        raise ValueError(
            f"transformer-tied-layers {numbers!r} are not the numbers of {config.decoder_layers} layers"
        )
    return config, numbers


def whole(settings: dict[str, Any], name: str, default: int | None = None) -> int:
    number = settings.get(name, default)
    if type(number) is not int or number < (1 if default is None else default):
        raise ValueError(f"{name} is {number!r} in {SETTINGS}; expected a whole number")
    return number


def parameters(
    config: ModelConfig, arrays: Arrays, numbers: list[int], settings: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """The state dict of our Transformer. Raises ValueError at an array that is missing, or one that nothing
    reads."""
    left = {
        name: array for name, array in arrays.items() if name != "Wpos" and not name.endswith("_QuantMultA")
    }
    used = set()

    def take(*names: str) -> np.ndarray:
        """The array by the first of these names that is there, two-dimensional."""
        name = next((each for each in names if each in left), None)
        if name is None:
            raise ValueError(f"there is no {' and no '.join(names)}, which its {SETTINGS} asks for")
        used.add(name)
        return left[name].T if name == "decoder_ff_logit_out_W" else np.atleast_2d(left[name])

    state = {}
    for name, their_name in layer_names(config, numbers):
        array = take(their_name)
        state[name] = array.reshape(-1) if name.endswith("bias") or "norm" in name else array.T
        if (
            settings.get("transformer-ffn-activation") == "gelu"
            and ".feed_forward." in name
            and not name.endswith("outer.bias")
        ):
            state[name] = state[name] * (GELU if ".inner." in name else 1 / GELU)
    tables = {"source_embedding": ("encoder_Wemb", "Wemb"), "target_embedding": ("decoder_Wemb", "Wemb")}
    untied = ("decoder_ff_logit_out_Wt", "decoder_ff_logit_out_W")
    tables["output"] = untied if config.embeddings == "separate" else tables["target_embedding"]
    for name, their_names in tables.items():
        state[f"{name}.weight"] = np.pad(take(*their_names), ((0, 1), (0, 0)))
    bias = (
        take(OUTPUT_BIAS).reshape(-1)
        if OUTPUT_BIAS in left
        else np.zeros(len(state["output.weight"]) - 1, np.float32)
    )
    state["output.bias"] = np.append(bias, np.float32(NEVER))
    if unread := sorted(left.keys() - used):
        raise ValueError(
            f"nothing reads its {', '.join(unread[:5])}; a model with such arrays is not supported"
        )
    return {name: torch.from_numpy(np.array(array, np.float32)) for name, array in state.items()}


def load(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of a model file, float32, and its settings. Raises ValueError at a file that is not whole or
    not Marian's."""
    raw = _npz(path) if path.suffix == ".npz" else _bin(path)
    if SETTINGS not in raw:
        raise ValueError(
            f"{path} has no {SETTINGS}, by which Marian says what the model is: expected a model file of "
            "Marian's"
        )
    settings = read_yaml(path, raw.pop(SETTINGS).tobytes().rstrip(b"\0"))
    for name, array in raw.items():
        if not np.issubdtype(array.dtype, np.floating):
            raise ValueError(
                f"{path}: {name} is of type {array.dtype}; expected floating-point numbers, or intgemm8 in "
                "a .bin"
            )
    return {name: array.astype(np.float32) for name, array in raw.items()}, settings


def read_yaml(path: Path, text: bytes) -> dict[str, Any]:
    """The mapping that a YAML text is. path: the file it is from, for errors."""
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: its settings are no YAML ({' '.join(str(error).split())[:200]}); copy the file again"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: its settings are a {type(found).__name__}; expected YAML `name: value`")
    return found


def write_npz(path: Path, arrays: Arrays, settings: dict[str, Any]) -> None:
    """Write a model file that Marian reads."""
    text = np.frombuffer(yaml.safe_dump(settings, default_flow_style=False).encode() + b"\0", dtype=np.int8)
    with path.open("wb") as file:
        np.savez(file, **arrays, **{SETTINGS: text})  # type: ignore[arg-type]  # numpy's stubs take the names for its own flags


def _npz(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
            if strange := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
                raise ValueError(f"{strange[0]} is no array")
            return arrays
    except Exception as error:  # strange bytes send zipfile and numpy anywhere
        raise ValueError(f"{path} is not a whole .npz of plain arrays ({error}); copy it again") from error


def _bin(path: Path) -> Arrays:
    data, at = path.read_bytes(), 0

    def take(count: int) -> bytes:
        nonlocal at
        if count > len(data) - at:
            raise ValueError(
                f"{path} ends too early: {count} bytes from {at} on are missing, it has {len(data)}; copy "
                "it again"
            )
        at += count
        return data[at - count : at]

    def numbers(letter: str, count: int) -> tuple[Any, ...]:
        return struct.unpack(f"<{count}{letter}", take(count * struct.calcsize(f"<{letter}")))

    version, count = numbers("Q", 2)
    if version != 1:
        raise ValueError(
            f"{path} is no .bin of Marian's, or of another version: it begins with {version}, expected 1"
        )
    headers = [numbers("Q", 4) for _ in range(_at_most(path, count, len(data) // 32))]
    names = [take(length).rstrip(b"\0").decode("utf-8", "replace") for length, *_ in headers]
    shapes = [numbers("i", _at_most(path, dimensions, MOST_DIMENSIONS)) for _, _, dimensions, _ in headers]
    take(*numbers("Q", 1))
    return {
        name: _array(f"{path}: {name}", kind, shape, take(size))
        for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True)
    }


def _at_most(path: Path, count: int, most: int) -> int:
    if count > most:
        raise ValueError(
            f"{path} is broken: it counts {count} where there can be {most} at most; copy it again"
        )
    return count


def _array(name: str, kind: int, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    """One array of a .bin. name: with its file, for errors."""
    sizes: dict[int, tuple[int, Callable[[int], np.ndarray]]] = {
        FLOAT32: (4, lambda n: np.frombuffer(data, "<f4", n)),
        INT8: (1, lambda n: np.frombuffer(data, np.int8, n)),
        INTGEMM8: (1, lambda n: np.frombuffer(data, np.int8, n) / np.frombuffer(data, "<f4", 1, offset=n)),
    }
    if kind not in sizes:
        raise ValueError(
            f"{name} is of type {kind:#x}; expected float32 ({FLOAT32:#x}) or intgemm8 ({INTGEMM8:#x}), as "
            "marian-conv writes"
        )
    width, read = sizes[kind]
    count = math.prod(shape)
    if min(shape, default=1) < 1 or count * width + (4 if kind == INTGEMM8 else 0) > len(data):
        raise ValueError(
            f"{name} has the shape {shape}, which does not fit into its {len(data)} bytes; copy the file "
            "again"
        )
    array = read(count)
    if kind == INTGEMM8 and not name.endswith("Wemb"):
        return array.reshape(shape[::-1]).T
    return array.reshape(shape)


def write(translator: Translator, folder: Path) -> None:
    """Raises ValueError at a model that Marian cannot express, or vocabularies that are not Marian's."""
    model, search = translator.model, translator.search
    check(model)
    names = []
    for side, vocabulary in (("source", translator.source_vocab), ("target", translator.target_vocab)):
        if not isinstance(vocabulary, MarianVocab):
            raise ValueError(
                f"Marian cannot read the vocabulary {vocabulary.path.name}: it numbers padding; {CURE}"
            )
        names.append(vocabulary.file.name)
        if vocabulary.cutter and vocabulary.cutter.path != vocabulary.file:
            shutil.copyfile(vocabulary.cutter.path, folder / f"{side}.spm")
    write_npz(folder / MODEL, arrays(model), settings(model))
    decoder = {
        "relative-paths": True,
        "models": [MODEL],
        "vocabs": names,
        "beam-size": search.beam,
        "normalize": search.length_penalty,
    }
    decoder["max-length-factor"] = search.max_ratio
    (folder / "decoder.yml").write_text(yaml.safe_dump(decoder, sort_keys=False), encoding="utf-8")


def check(model: Transformer) -> None:
    """Raises ValueError at a model that Marian cannot express."""
    config, specials = model.config, model.target_specials
    for name, values in CAN_BE.items():
        if getattr(config, name) not in values:
            raise ValueError(
                f"Marian has no {name} {getattr(config, name)!r}, only {' or '.join(map(repr, values))}; "
                f"{CURE}"
            )
    if specials.beginning != specials.padding or model.target_embedding.weight[specials.beginning].any():
        raise ValueError(
            "Marian's decoder begins with an embedding of 0, and this model's beginning has one that was "
            f"trained; {CURE}"
        )


def settings(model: Transformer) -> dict[str, Any]:
    """What special:model.yml says."""
    config = model.config
    (pre, post, top) = next(letters for letters, (norm, _) in NORMS.items() if norm == config.norm)
    if config.has_final_norm("encoder"):
        top = "n"
    own = {
        "dim-emb": config.d_model,
        "dim-vocabs": [model.source_vocab - 1, model.target_vocab - 1],
        "enc-depth": config.encoder_layers,
        "dec-depth": config.decoder_layers,
        "transformer-heads": config.heads,
        "transformer-dim-ffn": config.ffn,
        "transformer-decoder-dim-ffn": config.decoder_ffn,
        "transformer-ffn-activation": config.activation,
        "transformer-preprocess": pre,
        "transformer-postprocess": f"d{post}",
        "transformer-postprocess-emb": "nd" if config.embedding_norm else "d",
        "transformer-postprocess-top": top,
        "transformer-decoder-autoreg": "rnn" if config.decoder_mixer == "ssru" else "self-attention",
        "dec-cell": "ssru" if config.decoder_mixer == "ssru" else "gru",
        "tied-embeddings": config.embeddings == "tied-decoder",
        "tied-embeddings-all": config.embeddings == "tied",
    }
    return ALWAYS | own


def arrays(model: Transformer) -> Arrays:
    """The parameters by Marian's names, without the token that Marian has not. Heads that were removed become
    heads of zeros."""
    config, state = (
        model.config,
        {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()},
    )
    found = {}
    for name, their_name in layer_names(config, range(1, config.decoder_layers + 1)):
        array = state[name].T if state[name].ndim == 2 else state[name][None]
        if "_attention." in name:  # (D, H K) of q, k and v, (H K, D) of W_O, and their biases
            size = (len(array) if len(array) == 1 else config.d_model, config.d_model)
            array = np.pad(array, [(0, size[i] - array.shape[i]) for i in range(2)])
        found[their_name] = np.ascontiguousarray(array)
    for name, their_name in table_names(config).items():
        found[their_name] = state[f"{name}.weight"][:-1]
    found[OUTPUT_BIAS] = (
        state["output.bias"][None, :-1]
        if config.output_bias
        else np.zeros((1, model.target_vocab - 1), np.float32)
    )
    return found


def open(folder: Path, threads: int = 0) -> Translator:
    """The model that `write` wrote, as our own Transformer. threads: those that torch has, whatever is
    given."""
    translator = read(str(folder), ForeignOptions()).convert().translator
    specials = translator.model.source_specials, translator.model.target_specials
    return Translator(
        translator.model, *load_vocabs(folder, *specials), read_search(read_about(folder)["search"], folder)
    )

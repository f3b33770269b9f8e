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

`write` makes the model, decoder.yml and the vocabularies, as marian-decoder reads them: an int8 .bin of what
came as one, else model.npz. Marian's attentions are D by D and have one number of heads, so removed heads are
zeros; where all sites have few left, fewer and wider heads are written, filled up with zeros (engine:
transformer.h, MultiHead; expression_graph.h, which stops at another shape).
"""

import math
import re
import shutil
import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
import yaml

from headgates.bridges.foreign import STACK_OF_SIDE, Converted, ForeignModel, filled_model, with_one_width
from headgates.configs.fields import check_ranges, shortened
from headgates.configs.json_file import load_json
from headgates.configs.own_file import own_file, own_files
from headgates.configs.settings import ModelConfig, read_search
from headgates.configs.source import ForeignOptions
from headgates.configs.yaml_file import load_yaml, parse_yaml
from headgates.data.marian_vocab import MarianVocab, read_sides
from headgates.data.npz import read_npz
from headgates.data.shortlist import SHORTLIST_FILE, read_marian_list
from headgates.data.vocab import load_vocabs
from headgates.gates import find_sites, heads_left
from headgates.gates.depth import layers_left
from headgates.models.description import Description
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator

NamedArrays = dict[str, np.ndarray]

SETTINGS = "special:model.yml"

FLOAT32, INT8, INTGEMM8 = 0x404, 0x101, 0x4101

OUTPUT_BIAS = "decoder_ff_logit_out_b"

MODEL, INT8_MODEL = "model.npz", "model.intgemm8.bin"

LAYER_IN_NAME = re.compile(r"(encoder|decoder)_l\d+(?=_)")  # in an array's name

WIDTH_MULTIPLE = 64  # the engine's int8 products need a multiple of it

ALPHA = "_QuantMultA"  # after a matrix's name: what the engine multiplies its int8 inputs by

ROUNDING_TOLERANCE = 1e-3  # how far from whole numbers weights may be that are still those that were read

ALIGNED = 256  # bytes to which the data of a .bin begin and are filled up

ONNX_CURE = "take --to onnx"


class AboutModel(TypedDict):
    """What vocab.json says of a model that was read."""

    multipliers: dict[str, float]
    alphas: dict[str, float]
    bytes: int


# settings of decoder.yml -> ours
SEARCH = {"beam-size": "beam", "normalize": "length_penalty", "max-length-factor": "max_ratio"}

MARIANS_OWN = {"beam-size": 12, "normalize": 0.0, "max-length-factor": 3.0}  # where decoder.yml is silent

LISTING = ("first", "best", "threshold")  # of a shortlist in text, behind the name of its file

NEVER = -1000.0  # logit of the token that Marian does not have: its probability is 0

GELU = 1.702  # Marian's gelu is x sigmoid(1.702 x), a swish of a scaled number

# settings that can have these values alone; the first is what a file without them means
ONLY: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-ffn-activation": ("swish", "relu", "gelu"),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-no-projection": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-train-positions": (False,),
    "transformer-train-position-embeddings": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-postprocess-emb": ("", "d", "n", "nd"),
    "transformer-pool": (False,),
    "lemma-dim-emb": (0,),
    "right-left": (False,),
    "ulr": (False,),
}

WHOLE_NUMBERS = {  # whole numbers among the settings -> ours
    "dim-emb": "d_model",
    "transformer-dim-ffn": "ffn",
    "transformer-decoder-dim-ffn": "decoder_ffn",
    "transformer-heads": "heads",
    "enc-depth": "encoder_layers",
    "dec-depth": "decoder_layers",
}

# operations but dropout before, after and at the end of a stack -> ModelConfig's norm and final_norm
NORMS: dict[tuple[str, ...], tuple[str, str]] = {
    ("", "an", ""): ("post", "none"),
    ("n", "a", ""): ("pre", "none"),
    ("n", "a", "n"): ("pre", "both"),
}

# settings of ModelConfig in which Marian has no choice, or a smaller one
CAN_BE: dict[str, tuple[Any, ...]] = {
    "positions": ("tensor2tensor",),
    "first_position": (0,),
    "embedding_scale": (True,),
    "activation": ("relu", "swish"),
    "decoder_norm": ("same",),
    "final_norm": ("both", "none"),
    "decoder_heads": (0,),
    "norm_eps": (1e-6,),
    "norm_kind": ("layer",),
    "feed_forward": ("plain",),
    "biases": (True,),
    "head_width": (0,),
}

# settings without which some version of Marian does not begin
ALWAYS: dict[str, Any] = yaml.safe_load("""
    type: transformer
    version: v1.9.56
    input-types: []
    skip: false
    layer-normalization: false
    right-left: false
    ulr: false
    lemma-dim-emb: 0
    output-omit-bias: false
    tied-embeddings-src: false
    enc-cell: gru
    enc-cell-depth: 1
    enc-type: bidirectional
    dec-cell-base-depth: 2
    dec-cell-high-depth: 1
    dim-rnn: 1024
    transformer-ffn-depth: 2
    transformer-pool: false
    transformer-no-projection: false
    transformer-guided-alignment-layer: last
    transformer-tied-layers: []
    transformer-train-position-embeddings: false
    transformer-aan-activation: swish
    transformer-aan-depth: 2
    transformer-aan-nogate: false
    transformer-dim-aan: 2048
""")


def pair(ours: str, theirs: str) -> dict[str, str]:
    """Marian's names of a module's weight and bias, by ours."""
    weight, bias = ("scale", "bias") if "norm" in ours else ("W", "b")
    return {f"{ours}.weight": theirs.format(weight), f"{ours}.bias": theirs.format(bias)}


def layer_names(config: ModelConfig, decoder_numbers: Sequence[int]) -> dict[str, str]:
    """Marian's names of all parameters but tables and the output's, by their names in the state dict.
    decoder_numbers: the number, from 1, by which Marian calls the layer whose weights each decoder layer
    has."""
    found: dict[str, str] = {}
    both = (range(1, config.encoder_layers + 1), decoder_numbers)
    for (side, stack), numbers in zip(STACK_OF_SIDE.items(), both, strict=True):
        before = "_pre" if config.norm_of(stack) == "pre" else ""
        if config.embedding_norm:
            found |= pair(f"{side}_norm", f"{stack}_emb_ln_{{}}_pre")
        if config.has_final_norm(stack):
            found |= pair(f"{stack}.norm", f"{stack}_top_ln_{{}}")
        attentions = {"self": "self"} if stack == "encoder" else {"self": "self", "cross": "context"}
        for i, number in enumerate(numbers):
            ours, theirs = f"{stack}.layers.{i}", f"{stack}_l{number}"
            if stack == "decoder" and config.decoder_mixer == "ssru":
                attentions.pop("self", None)
                found[f"{ours}.self_attention.update.weight"] = f"{theirs}_rnn_W"
                found |= pair(f"{ours}.self_attention.forget", f"{theirs}_rnn_{{}}f")
                rnn = "rnn" if before else "rnn_ffn"
                found |= pair(f"{ours}.self_residual.norm", f"{theirs}_{rnn}_ln_{{}}{before}")
            for name, known in attentions.items():
                for each in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    found |= pair(f"{ours}.{name}_attention.{each}", f"{theirs}_{known}_{{}}{each[0]}")
                found |= pair(f"{ours}.{name}_residual.norm", f"{theirs}_{known}_Wo_ln_{{}}{before}")
            for each, suffix in (("inner", "1"), ("outer", "2")):
                found |= pair(f"{ours}.feed_forward.{each}", f"{theirs}_ffn_{{}}{suffix}")
            found |= pair(f"{ours}.feed_residual.norm", f"{theirs}_ffn_ffn_ln_{{}}{before}")
    return found


def table_names(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Marian's names of the tables (V, D) of a model, the one that is written first: one where the settings
    share it."""
    if config.embeddings == "tied":
        source: tuple[str, ...] = ("Wemb",)
        target = output = source
    else:
        source, target = ("encoder_Wemb", "Wemb"), ("decoder_Wemb", "Wemb")
        untied = ("decoder_ff_logit_out_Wt", "decoder_ff_logit_out_W")
        output = untied if config.embeddings == "separate" else target
    return {"source_embedding": source, "target_embedding": target, "output": output}


def read(place: str, options: ForeignOptions) -> ForeignModel:
    """PLACE: a folder, or a .npz or .bin with its vocabularies beside it. Raises ValueError where one of them
    is not found."""
    files = find_files(Path(place))
    beside = (*files.vocabularies, *files.cutters, files.shortlist)
    paths = [files.model, *dict.fromkeys(filter(None, (files.settings, *beside)))]
    return ForeignModel(files.model.resolve().parent.name, paths, lambda: convert(files, options.tgt_lang))


@dataclass(frozen=True)
class MarianFiles:
    """vocabularies, cutters: of source and target, the same file twice where joint. search: settings of a
    run's. writes_unknown: whether translations may hold <unk>. shortlist, listing: the file of its shortlist,
    and how that is read (`read_marian_list`). settings: the YAML file that named all these, if there is
    one."""

    model: Path
    vocabularies: list[Path]
    cutters: list[Path | None]
    search: dict[str, Any]
    writes_unknown: bool
    shortlist: Path | None
    listing: dict[str, Any]
    settings: Path | None


def find_files(place: Path) -> MarianFiles:
    """What decoder.yml (or another YAML file with `models` and `vocabs`) names, or else the model and the
    vocabularies that lie there."""
    folder = place if place.is_dir() else place.parent
    if not place.exists():
        raise ValueError(f"there is no {place}; expected a folder, or a .npz or .bin of Marian's")
    paths = sorted([*own_files(folder, "decoder.yml"), *own_files(folder, "config*.yml")])
    read = ((path, load_yaml(path)) for path in paths)
    lists = (each for each in read if all(isinstance(each[1].get(n), list) for n in ("models", "vocabs")))
    settings, config = next(lists, (None, {}))
    models = [place] if place.is_file() else [own_file(folder, name) for name in config.get("models", [])]
    models = models or sorted(
        path
        for path in own_files(folder)
        if path.suffix in (".npz", ".bin") and not path.name.startswith("lex")
    )
    if len(models) != 1:
        names = ", ".join(path.name for path in models) or "none"
        raise ValueError(
            f"{folder}: expected one model, .npz or .bin, got {names}; name its file instead of the folder"
        )
    vocabularies = [own_file(folder, name) for name in config.get("vocabs", [])]
    if not config:
        found = [*own_files(folder, "*vocab*.spm"), *own_files(folder, "*vocab*.yml")]
        vocabularies = sorted(found, key=is_target)
        if len(found) == 2 and not is_target(vocabularies[1]):
            vocabularies = []
    if len(vocabularies) not in (1, 2):
        raise ValueError(
            f"{folder}: cannot tell the vocabularies of {models[0].name}; write them into decoder.yml "
            f"beside it, with `models: [{models[0].name}]` and `vocabs: [SOURCE, TARGET]`"
        )
    name, *numbers = as_list(config.get("shortlist")) or [None]
    shortlist = None if name is None else own_file(folder, name)
    for path in (*models, *vocabularies, *filter(None, [shortlist])):
        if not path.is_file():
            raise ValueError(f"there is no {path}, which the files beside it name; copy it there")
    both = [vocabularies[0], vocabularies[-1]]
    cutter_files = [own_file(folder, f"{side}.spm") for side in STACK_OF_SIDE]
    cutters = [
        cutter if cutter.is_file() and path.suffix != ".spm" else None
        for path, cutter in zip(both, cutter_files, strict=True)
    ]
    config = MARIANS_OWN | config if config else config
    search = {
        ours: config[theirs] for theirs, ours in SEARCH.items() if isinstance(config.get(theirs), int | float)
    }
    if penalty := config.get("word-penalty"):
        warnings.warn(f"of {settings} this is not used: word-penalty {shortened(penalty)}", stacklevel=2)
    listing = dict(zip(LISTING, filter(is_number, numbers), strict=False))
    writes_unknown = config.get("allow-unk") is True
    return MarianFiles(models[0], both, cutters, search, writes_unknown, shortlist, listing, settings)


def as_list(value: Any) -> list[Any]:
    """What a setting of Marian's holds that may have several values."""
    return value if isinstance(value, list) else [] if value is None else [value]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_target(path: Path) -> bool:
    """Whether the name of a vocabulary says that it is the target's."""
    return path.name.startswith(("trg", "target"))


def convert(files: MarianFiles, language: str | None) -> Converted:
    """The model as one of ours. language: of a model of many, the one to write: `fra` for the token
    >>fra<<."""
    arrays, settings, multipliers = load_arrays(files.model)
    try:
        config, numbers = our_config(settings)
        state = our_parameters(config, arrays, numbers, settings)
    except ValueError as error:
        raise ValueError(f"{files.model}: {error}") from error
    sizes = [len(state[f"{side}_embedding.weight"]) - 1 for side in STACK_OF_SIDE]
    marked = None if language is None else f">>{language}<<"
    source, target = read_sides(
        files.vocabularies, files.cutters, sizes, marked, writes_unknown=files.writes_unknown
    )
    model = filled_model(
        config, [size + 1 for size in sizes], state, files.model, specials=(source.specials, target.specials)
    )
    names = {
        path: f"vocab{i}{path.suffix}"
        for i, path in enumerate(dict.fromkeys((*files.vocabularies, *files.cutters)))
        if path
    }
    about = {
        "kind": "marian",
        "files": [names[path] for path in files.vocabularies],
        "cutters": [path and names[path] for path in files.cutters],
        "sizes": sizes,
        "language": marked,
        "bytes": files.model.stat().st_size,
        "multipliers": multipliers,
        "alphas": {name: float(array.flat[0]) for name, array in arrays.items() if name.endswith(ALPHA)},
    }
    run = {"search": files.search, "text": {"joint": config.embeddings == "tied"}}
    translator = Translator(model, source, target, read_search(files.search, files.model.parent))
    if files.shortlist is not None:
        found = read_marian_list(files.shortlist, source, target, model.source_vocab, **files.listing)
        translator = translator.with_shortlist(found)
    return Converted(translator, {name: path for path, name in names.items()}, about, run)


def our_config(settings: dict[str, Any]) -> tuple[ModelConfig, list[int]]:
    """The settings as ours, and by which number, from 1, each decoder layer's weights are called. ValueError
    at what we have not."""
    for name, values in ONLY.items():
        if settings.get(name, values[0]) not in values:
            raise ValueError(
                f"{name} {shortened(settings[name])} is not supported; expected "
                f"{' or '.join(map(repr, values))}"
            )
    ssru = settings.get("transformer-decoder-autoreg") == "rnn"
    if ssru and (settings.get("dec-cell") != "ssru" or settings.get("layer-normalization")):
        raise ValueError(
            f"dec-cell {shortened(settings.get('dec-cell'))} is not supported; expected 'ssru', without "
            "layer-normalization"
        )
    names = ("transformer-preprocess", "transformer-postprocess", "transformer-postprocess-top")
    operations = tuple(str(settings.get(name) or "").replace("d", "") for name in names)
    if operations not in NORMS:
        given = ", ".join(f"{name} {shortened(settings.get(name))}" for name in names)
        raise ValueError(
            f"{given} are not supported; expected post-norm ('', 'dan', '') or pre-norm ('n', 'da', 'n')"
        )
    norm, final_norm = NORMS[operations]
    every, source, output = (settings.get(f"tied-embeddings{each}") for each in ("-all", "-src", ""))
    tied = every or (source and output)
    numbers: dict[str, Any] = {ours: whole(settings, theirs) for theirs, ours in WHOLE_NUMBERS.items()}
    config = ModelConfig(
        **numbers,
        norm=norm,  # type: ignore[arg-type]  # one of ModelConfig's
        final_norm=final_norm,  # type: ignore[arg-type]
        norm_eps=1e-6,
        positions="tensor2tensor",
        embeddings="tied" if tied else "tied-decoder" if output else "separate",
        embedding_norm="n" in (settings.get("transformer-postprocess-emb") or ""),
        activation="relu" if settings.get("transformer-ffn-activation") == "relu" else "swish",
        output_bias=True,
        decoder_mixer="ssru" if ssru else "attention",
    )
    check_ranges(config, "")
    if config.d_model % 2 or config.d_model % config.heads:
        raise ValueError(
            f"dim-emb {config.d_model} cannot be split into {config.heads} transformer-heads of an even sum"
        )
    layers = settings.get("transformer-tied-layers") or list(range(1, config.decoder_layers + 1))
    if not isinstance(layers, list) or [type(each) for each in layers] != [int] * config.decoder_layers:
        raise ValueError(
            f"transformer-tied-layers {shortened(layers)} are not the numbers of {config.decoder_layers} "
            f"layers"
        )
    return config, layers


def whole(settings: dict[str, Any], name: str) -> int:
    may_lack = WHOLE_NUMBERS[name] == "decoder_ffn"  # 0: as wide as the encoder's
    number = settings.get(name, 0 if may_lack else None)
    if type(number) is not int or number < (0 if may_lack else 1):
        raise ValueError(f"{name} is {shortened(number)} in {SETTINGS}; expected a whole number")
    return number


def our_parameters(
    config: ModelConfig, arrays: NamedArrays, numbers: list[int], settings: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """The state dict of our Transformer. Raises ValueError at an array that is missing, or one that nothing
    reads."""
    left = {name: array for name, array in arrays.items() if name != "Wpos" and not name.endswith(ALPHA)}
    used = set()

    def take(*names: str) -> np.ndarray:
        """The array by the first of these names that is there, two-dimensional."""
        name = next((each for each in names if each in left), None)
        if name is None:
            raise ValueError(f"there is no {' and no '.join(names)}, which its {SETTINGS} asks for")
        used.add(name)
        return left[name].T if name == "decoder_ff_logit_out_W" else np.atleast_2d(left[name])

    state = {}
    gelu = settings.get("transformer-ffn-activation") == "gelu"
    for name, their_name in layer_names(config, numbers).items():
        array = take(their_name)
        state[name] = array.reshape(-1) if name.endswith("bias") or "norm" in name else array.T
        if gelu and ".feed_forward." in name and not name.endswith("outer.bias"):
            state[name] = state[name] * (GELU if ".inner." in name else 1 / GELU)
    for name, their_names in table_names(config).items():
        state[f"{name}.weight"] = np.pad(take(*their_names), ((0, 1), (0, 0)))
    nothing = np.zeros(len(state["output.weight"]) - 1, np.float32)
    bias = take(OUTPUT_BIAS).reshape(-1) if OUTPUT_BIAS in left else nothing
    state["output.bias"] = np.append(bias, np.float32(NEVER))
    if unread := sorted(left.keys() - used):
        raise ValueError(
            f"nothing reads its {', '.join(unread[:5])}; a model with such arrays is not supported"
        )
    return {name: torch.from_numpy(np.array(array, np.float32)) for name, array in state.items()}


def load_arrays(path: Path) -> tuple[NamedArrays, dict[str, Any], dict[str, float]]:
    """The arrays of a model file, float32, its settings, and what those that were int8 had been multiplied
    by. Raises ValueError at a file that is not whole or not Marian's."""
    raw, multipliers = (read_npz(path, cure="copy it again"), {}) if path.suffix == ".npz" else _bin(path)
    if SETTINGS not in raw:
        raise ValueError(
            f"{path} has no {SETTINGS}, by which Marian says what the model is: expected a model file of "
            "Marian's"
        )
    settings = parse_yaml(raw.pop(SETTINGS).tobytes().rstrip(b"\0"), path)
    for name, array in raw.items():
        if not np.issubdtype(array.dtype, np.floating):
            raise ValueError(
                f"{path}: {name} is of type {array.dtype}; expected floating-point numbers, or intgemm8 in "
                "a .bin"
            )
    return {name: array.astype(np.float32) for name, array in raw.items()}, settings, multipliers


def yaml_bytes(settings: dict[str, Any]) -> bytes:
    return yaml.safe_dump(settings, default_flow_style=False).encode() + b"\0"


def write_npz(path: Path, arrays: NamedArrays, settings: dict[str, Any]) -> None:
    """Write a model file that Marian reads."""
    text = np.frombuffer(yaml_bytes(settings), dtype=np.int8)
    with path.open("wb") as file:
        np.savez(file, **arrays, **{SETTINGS: text})  # type: ignore[arg-type]  # numpy's stubs take the names for its own flags


def _bin(path: Path) -> tuple[NamedArrays, dict[str, float]]:
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
    headers = [numbers("Q", 4) for _ in range(count)]
    names = [take(length).rstrip(b"\0").decode("utf-8", "replace") for length, *_ in headers]
    shapes = [numbers("i", dimensions) for _, _, dimensions, _ in headers]
    take(*numbers("Q", 1))
    arrays, multipliers = {}, {}
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        bytes_of = take(size)
        arrays[name] = _array(f"{path}: {name}", kind, shape, bytes_of)
        if kind == INTGEMM8:
            (multipliers[name],) = struct.unpack_from("<f", bytes_of, math.prod(shape))
    return arrays, multipliers


def write_bin(
    path: Path, arrays: NamedArrays, settings: dict[str, Any], multipliers: dict[str, float]
) -> bool:
    """Write a model file that Marian reads, the arrays with a multiplier in int8; whether any was rounded.

    An array that its multiplier no longer makes whole numbers of at most 127 gets another."""
    rounded = False
    parts: list[tuple[str, int, tuple[int, ...], bytes]] = []
    for name, array in sorted(arrays.items()):
        kind, content = FLOAT32, array.astype("<f4").tobytes()
        if name in multipliers:
            by = np.float32(multipliers[name])
            whole = np.rint(array * by)
            if not (np.abs(whole) <= 127).all() or np.abs(array * by - whole).max() > ROUNDING_TOLERANCE:
                rounded, by = True, np.float32(127 / (np.abs(array).max() or 1))
                whole = np.rint(array * by)
            stored = whole.astype(np.int8)
            kind, content = INTGEMM8, (stored if name.endswith("Wemb") else stored.T).tobytes() + by.tobytes()
        parts.append((name, kind, array.shape, content + bytes(-len(content) % ALIGNED)))
    text = yaml_bytes(settings)
    parts.append((SETTINGS, INT8, (len(text),), text))
    head = struct.pack("<2Q", 1, len(parts))
    for name, kind, shape, content in parts:
        head += struct.pack("<4Q", len(name) + 1, kind, len(shape), len(content))
    head += b"".join(name.encode() + b"\0" for name, *_ in parts)
    head += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in parts)
    padding = -(len(head) + 8) % ALIGNED
    head += struct.pack("<Q", padding) + bytes(padding)
    path.write_bytes(head + b"".join(content for *_, content in parts))
    return rounded


def _array(name: str, kind: int, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    """One array of a .bin. name: with its file, for errors."""
    if kind not in (FLOAT32, INT8, INTGEMM8):
        raise ValueError(
            f"{name} is of type {kind:#x}; expected float32 ({FLOAT32:#x}) or intgemm8 ({INTGEMM8:#x}), as "
            "marian-conv writes"
        )
    count = math.prod(shape)
    size = {FLOAT32: 4 * count, INT8: count, INTGEMM8: count + 4}[kind]
    if min(shape, default=1) < 1 or size > len(data):
        raise ValueError(
            f"{name} has the shape {shape}, which does not fit into its {len(data)} bytes; copy it again"
        )
    array = np.frombuffer(data, "<f4" if kind == FLOAT32 else np.int8, count)
    if kind == INTGEMM8:
        array = array / np.frombuffer(data, "<f4", 1, offset=count)
        if not name.endswith("Wemb"):
            return array.reshape(shape[::-1]).T
    return array.reshape(shape)


def write(translator: Translator, folder: Path) -> dict[str, Any]:
    """What was written: whether weights were rounded, and a line on its size. Raises ValueError at a model
    that Marian cannot express, or vocabularies that are not Marian's."""
    model, search, specials = translator.model, translator.search, translator.model.target_specials
    check_for_marian(model)
    names = []
    for side, vocabulary in (("source", translator.source_vocab), ("target", translator.target_vocab)):
        if not isinstance(vocabulary, MarianVocab):
            raise ValueError(
                f"Marian cannot read the vocabulary {vocabulary.path.name}: it numbers padding; {ONNX_CURE}"
            )
        names.append(vocabulary.file.name)
        if vocabulary.cutter and vocabulary.cutter.path != vocabulary.file:
            shutil.copyfile(vocabulary.cutter.path, folder / f"{side}.spm")
    about: Any = load_json(translator.source_vocab.path, AboutModel, cure="make the run again")
    about |= {name: of_layers_left(model, about[name]) for name in ("multipliers", "alphas")}
    left = [site.heads for site in find_sites(model)]
    whole = sum(row.numel() for row in heads_left(model).values())
    model = with_one_width(model, WIDTH_MULTIPLE if about["multipliers"] else 1)
    heads = common_heads(model)
    scale = math.sqrt(model.config.heads / heads)  # of queries, whose heads are so much wider
    multipliers = {
        name: by / scale if name.endswith("_Wq") else by for name, by in about["multipliers"].items()
    }
    rounded, file = False, folder / (INT8_MODEL if multipliers else MODEL)
    content = arrays(model, heads)
    if multipliers:
        alphas = {name: np.full((1, 1), alpha, np.float32) for name, alpha in about["alphas"].items()}
        rounded = write_bin(file, content | alphas, written_settings(model, heads), multipliers)
    else:
        write_npz(file, content, written_settings(model, heads))
    decoder = {"relative-paths": True, "models": [file.name], "vocabs": names}
    decoder |= {theirs: getattr(search, ours) for theirs, ours in SEARCH.items()}
    decoder |= {"allow-unk": True} if specials.writes_unknown else {}
    if (listed := translator.shortlist) is not None:
        listed.without_padding(model.target_vocab - 1, specials.end).write(folder / SHORTLIST_FILE)
        decoder["shortlist"] = [SHORTLIST_FILE]
    (folder / "decoder.yml").write_text(yaml.safe_dump(decoder, sort_keys=False), encoding="utf-8")
    size, before = file.stat().st_size, about["bytes"]
    said = (
        f"{file.name}: {size / 1e6:.1f} MB, as it was read {before / 1e6:.1f} MB; {sum(left)} of {whole} "
        f"heads are left, written as {len(left)} attentions of {heads}, filled up with zeros; feed-forward "
        f"layers have {model.config.ffn} neurons in the encoder, "
        f"{model.config.decoder_ffn or model.config.ffn} in the decoder"
    )
    return {"rounded": rounded, "said": said}


def of_layers_left(model: Transformer, numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers, by Marian's names, of a model that was read, without those of layers that were dropped
    since, and by the names that the other layers have now."""
    now = {
        f"{stack}_l{before}": f"{stack}_l{number}"
        for stack, row in layers_left(model).items()
        for number, before in enumerate((i for i, stays in enumerate(row, 1) if stays), 1)
    }
    found = {}
    for name, number in numbers.items():
        layer = LAYER_IN_NAME.match(name)
        if layer is None:
            found[name] = number
        elif layer[0] in now:
            found[name.replace(layer[0], now[layer[0]], 1)] = number
    return found


def common_heads(model: Transformer) -> int:
    """Heads of every attention in the file: the fewest that divide the model's width and hold each site's."""
    config = model.config
    most = max((site.heads for site in find_sites(model)), default=config.heads)
    return next(n for n in range(max(most, 1), config.heads + 1) if config.d_model % n == 0)


def check_for_marian(model: Transformer) -> None:
    """Raises ValueError at a model that Marian cannot express."""
    config, specials = model.config, model.target_specials
    for name, values in CAN_BE.items():
        if getattr(config, name) not in values:
            raise ValueError(
                f"Marian has no {name} {getattr(config, name)!r}, only {' or '.join(map(repr, values))}; "
                f"{ONNX_CURE}"
            )
    if specials.beginning != specials.padding or model.target_embedding.weight[specials.beginning].any():
        raise ValueError(
            "Marian's decoder begins with an embedding of 0, and this model's beginning has one that was "
            f"trained; {ONNX_CURE}"
        )


def written_settings(model: Transformer, heads: int) -> dict[str, Any]:
    """What special:model.yml says of a model that is written with so many heads."""
    config = model.config
    (pre, post, top) = next(letters for letters, (norm, _) in NORMS.items() if norm == config.norm)
    if config.has_final_norm("encoder"):
        top = "n"
    own = {theirs: getattr(config, ours) for theirs, ours in WHOLE_NUMBERS.items()} | {
        "transformer-heads": heads,
        "dim-vocabs": [model.source_vocab - 1, model.target_vocab - 1],
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


def arrays(model: Transformer, heads: int) -> NamedArrays:
    """The parameters by Marian's names, without the token that Marian has not. Every attention gets so many
    heads, which together are D wide: what its own heads lack in number and width is zeros, and W_q makes up
    for the division by the root of the width."""
    config = model.config
    width, wider = config.d_model // config.heads, config.d_model // heads
    state = {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()}
    found = {}
    for name, their_name in layer_names(config, range(1, config.decoder_layers + 1)).items():
        array = state[name].T if state[name].ndim == 2 else state[name][None]
        if re.search(r"_attention\.([qkv]_proj|out_proj.weight)", name):  # (.., H K), W_O's (H K, D)
            array = array if "out_proj" not in name else array.T
            split = array.reshape(len(array), -1, width)
            missing = ((0, 0), (0, heads - split.shape[1]), (0, wider - width))
            array = np.pad(split, missing).reshape(len(array), -1)
            array = array * np.float32(math.sqrt(wider / width)) if "q_proj" in name else array
            array = array if "out_proj" not in name else array.T
        found[their_name] = np.ascontiguousarray(array)
    for name, their_names in table_names(config).items():
        found[their_names[0]] = state[f"{name}.weight"][:-1]
    bias = state.get("output.bias", np.zeros(model.target_vocab, np.float32))
    found[OUTPUT_BIAS] = bias[None, :-1]
    return found


def open(folder: Path, shape: Description, threads: int) -> Translator:
    """The model that `write` wrote, as our own Transformer."""
    found = read(str(folder), ForeignOptions()).convert().translator
    vocabs = load_vocabs(folder, shape.source_specials, shape.target_specials)
    return Translator(found.model, *vocabs, shortlist=found.shortlist)

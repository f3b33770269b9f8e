"""Models of Marian (marian-nmt.github.io): OPUS-MT's, Mozilla's and Bergamot's, as .npz or .bin.
Junczys-Dowmunt et al. 2018 (P18-4020).

    python translate.py marian:opus-mt-en-fr < in.txt          # a folder, with decoder.yml or one model and
    its vocabularies
    python prune.py marian:model.npz --data DATA --src en --tgt fr

The decoder begins with an embedding of 0, which here is that of one more token, padding and beginning at
once. What the file's settings ask for and our Transformer has not is refused by the setting's name; so is an
array that nothing reads.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from headgates.bridges.foreign import Converted, ForeignModel
from headgates.bridges.marian_file import SETTINGS, Arrays, load, read_yaml
from headgates.bridges.marian_names import OUTPUT_BIAS, layer_names
from headgates.bridges.marian_vocab import read_sides
from headgates.configs.fields import shortened
from headgates.configs.schema import ModelConfig, read_search
from headgates.configs.source import ForeignOptions
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator

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
                f"{folder}: `{name}` in its YAML is {shortened(config[name])}, expected a list of file names; copy it again"
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
            f"{folder}: cannot tell the vocabularies of {models[0].name}; write them into decoder.yml beside it, "
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
            f"dec-cell {settings.get('dec-cell')!r} is not supported; expected 'ssru', without layer-normalization"
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
            f"transformer-postprocess-emb {settings['transformer-postprocess-emb']!r} is not supported; expected 'd' or 'nd'"
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

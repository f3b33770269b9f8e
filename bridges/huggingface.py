"""`hf:NAME_OR_FOLDER`: Hugging Face's Marian, BART, mBART, M2M100 and NLLB, Pegasus and FSMT models as our
Transformer.

transformers reads the weights, from safetensors or with weights_only, and their names become ours. What a
family always has stands in FAMILIES, the rest comes from config.json; no class and no code but transformers'
own is used.
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headgates.bridges.foreign import Converted, ForeignModel
from headgates.bridges.huggingface_tokens import vocabulary
from headgates.bridges.huggingface_vocab import PREFIX, SIDES, library, quiet
from headgates.bridges.huggingface_vocab import load as load_vocabs
from headgates.configs.fields import shortened
from headgates.configs.schema import ModelConfig, read_search
from headgates.configs.source import ForeignOptions
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import find_sites, heads_left, load_pruned, set_heads_left
from headgates.models.positions import sinusoids
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)  # the first is read
SETTINGS = ("config.json", "generation_config.json")
TOKENIZER = (
    "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "target_vocab.json",
    "vocab-src.json", "vocab-tgt.json", "merges.txt", "source.spm", "target.spm", "sentencepiece.bpe.model", "spiece.model",
)  # fmt: skip
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}  # theirs -> ours
REFUSED = (
    "quantization_config",
    "auto_map",
    "adapter_config",
)  # settings that ask for other code, or for other weights

# ours -> theirs, inside a layer and outside
LAYER = {
    "self_attention": "self_attn", "cross_attention": "encoder_attn", "self_residual.norm": "self_attn_layer_norm",
    "cross_residual.norm": "encoder_attn_layer_norm", "feed_residual.norm": "final_layer_norm", "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
}  # fmt: skip
WHOLE = {
    "source_embedding": "model.encoder.embed_tokens", "target_embedding": "model.decoder.embed_tokens",
    "source_positions": "model.encoder.embed_positions", "target_positions": "model.decoder.embed_positions",
    "source_norm": "model.encoder.layernorm_embedding", "target_norm": "model.decoder.layernorm_embedding",
    "encoder.norm": "model.encoder.layer_norm", "decoder.norm": "model.decoder.layer_norm", "output": "lm_head",
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """What all models of one class have.

    settings: of ours, always so. waves: its sinusoids, unless its table of positions holds others. offset:
    rows of that table before the first position; None where there is no table. renamed: our names that are
    called otherwise than in
    WHOLE."""

    model: str  # the class in transformers
    settings: dict[str, Any]
    waves: str
    offset: int | None
    renamed: dict[str, str] = field(default_factory=dict)


PRE, POST = (
    {"norm": "pre", "final_norm": "both", "decoder_norm": "same"},
    {"norm": "post", "decoder_norm": "same"},
)
PLAIN = {"embedding_norm": False, "output_bias": False}
AFTER_PADDING = -1  # an offset: the row after that with the number of the padding, as in fairseq
FAMILIES = {  # by model_type
    "marian": Family(
        "MarianMTModel", POST | {"embedding_norm": False, "output_bias": True}, "sinusoidal-halves", 0
    ),
    "bart": Family(
        "BartForConditionalGeneration",
        POST | {"embedding_norm": True, "output_bias": True},
        "sinusoidal-halves",
        2,
    ),
    "mbart": Family(
        "MBartForConditionalGeneration",
        PRE | {"embedding_norm": True, "output_bias": True},
        "sinusoidal-halves",
        2,
    ),
    "m2m_100": Family("M2M100ForConditionalGeneration", PRE | PLAIN, "tensor2tensor", None),
    "pegasus": Family(
        "PegasusForConditionalGeneration",
        PRE | {"embedding_norm": False, "output_bias": True},
        "sinusoidal-halves",
        0,
    ),
    "fsmt": Family(
        "FSMTForConditionalGeneration",
        POST | PLAIN,
        "tensor2tensor",
        AFTER_PADDING,
        {"output": "model.decoder.output_projection"},
    ),
}


def their_name(name: str, family: Family) -> str:
    """What our parameter of this name is called in a model of the family."""
    if name == "output.bias":
        return "final_logits_bias"
    if ".layers." in name:
        stack, _, layer, rest = name.split(".", 3)
        ours = next(each for each in LAYER if rest.startswith(each))
        return f"model.{stack}.layers.{layer}.{LAYER[ours]}{rest.removeprefix(ours)}"
    whole = WHOLE | family.renamed
    ours = next(each for each in whole if name.startswith(f"{each}."))
    return whole[ours] + name.removeprefix(ours)


def read(place: str, options: ForeignOptions) -> ForeignModel:
    """The model of a folder, or of a name in the Hub. Raises ValueError where it is missing, broken, or of no
    family that we know."""
    folder = snapshot(place)
    config = read_settings(folder / "config.json")
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(
            f"hf:{place} is of the type {shortened(family)}; these are read: {', '.join(FAMILIES)} (NLLB is m2m_100)"
        )
    found = weights(folder)
    files = [folder / name for name in (*SETTINGS, *TOKENIZER) if (folder / name).is_file()] + found
    name = folder.resolve().name if Path(place).is_dir() else place.rsplit("/", 1)[-1]
    return ForeignModel(name, files, lambda: convert(folder, config, options))


def snapshot(place: str) -> Path:
    """The folder of a model: its own, or one that the Hub's client keeps. Weights are safetensors where there
    are any."""
    if Path(place).is_dir():
        return Path(place)
    library()
    hub = library("huggingface_hub")
    try:
        with quiet():
            kept = Path(
                hub.snapshot_download(
                    place, allow_patterns=[*SETTINGS, *TOKENIZER, "model*.safetensors", WEIGHTS[1]]
                )
            )
            if not any((kept / name).is_file() for name in WEIGHTS[:2]):
                kept = Path(hub.snapshot_download(place, allow_patterns=["pytorch_model*.bin", WEIGHTS[3]]))
    except (OSError, ValueError, hub.errors.HFValidationError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"hf:{place} is neither a folder here nor a model that the Hugging Face Hub gives ({reason}); is the name right, as in "
            "hf:Helsinki-NLP/opus-mt-en-de?"
        ) from error
    return kept


def read_settings(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"{path.parent} has no {path.name}; expected a folder as save_pretrained writes it"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is broken ({error}); copy the model's folder again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; expected settings by name")
    return content


def weights(folder: Path) -> list[Path]:
    """The files of the weights. Raises ValueError where there are none, or one of them is missing."""
    first = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if first is None:
        raise ValueError(f"{folder} has no weights; expected model.safetensors or pytorch_model.bin")
    if first.suffix != ".json":
        return [first]
    named = read_settings(first).get("weight_map")
    parts = sorted({str(name) for name in named.values()}) if isinstance(named, dict) else []
    missing = [name for name in parts if Path(name).name != name or not (folder / name).is_file()]
    if missing or not parts:
        raise ValueError(
            f"{first} names weights that are not there ({', '.join(missing) or 'none'}); copy the model's folder again"
        )
    return [first, *(folder / name for name in parts)]


def convert(folder: Path, config: Mapping[str, Any], options: ForeignOptions) -> Converted:
    """The model as one of ours. Raises ValueError where its files are broken or hold what ours lacks."""
    family = FAMILIES[config["model_type"]]
    model = read_model(folder, family, config)
    state = {name: tensor.detach().float() for name, tensor in model.state_dict().items()}
    shape = architecture(model.config, family, state)
    sizes = [len(state[their_name(f"{side}_embedding.weight", family)]) for side in SIDES]
    files = {PREFIX + name: folder / name for name in TOKENIZER if (folder / name).is_file()}
    about = vocabulary(folder, model, sizes, options)
    source, target = (SpecialTokens(**about[side]["specials"]) for side in SIDES)
    heads = {site.name: site.heads for site in find_sites(model)}
    ours = Transformer(
        shape, sizes[0], sizes[1], heads, source_specials=source, target_specials=target
    ).eval()
    set_heads_left(ours, heads_left(model))
    ours.load_state_dict({name: our_tensor(name, state, family, ours) for name in ours.state_dict()})
    settings = {"search": search(model.generation_config), "text": {"joint": shape.embeddings == "tied"}}
    vocabs = load_vocabs(
        folder, about | {"files": {path.name: path.name for path in files.values()}}, source, target
    )
    about["files"] = {name: path.name for name, path in files.items()}
    return Converted(
        Translator(ours, *vocabs, read_search(settings["search"], folder)), files, about, settings
    )


def read_model(folder: Path, family: Family, config: Mapping[str, Any]) -> Any:
    """The model as transformers has it, in fp32, without the heads that `save_pruned` or `--to hf` wrote none
    of.

    Raises ValueError where weights and settings are broken or do not fit each other."""
    transformers = library()
    if asked := [name for name in REFUSED if config.get(name)]:
        raise ValueError(
            f"{folder / 'config.json'} has {asked[0]}, which is not read: save the model without it, in fp32, and try again"
        )
    if (folder / "adapter_config.json").exists():
        raise ValueError(
            f"{folder} has an adapter; merge it into the model (peft: merge_and_unload) and save that"
        )
    plain: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    try:
        with quiet():
            if "headgates" in config:
                return load_pruned(folder, **plain)
            whole = plain | {"local_files_only": True, "output_loading_info": True}
            model, info = getattr(transformers, family.model).from_pretrained(str(folder), **whole)
    except Exception as error:  # broken files send the library anywhere
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(
            f"the weights and settings in {folder} do not make a {family.model} ({reason}); copy the folder again"
        ) from error
    wrong = {
        kind: sorted(map(str, info[f"{kind}_keys"]))
        for kind in ("missing", "unexpected", "mismatched")
        if info[f"{kind}_keys"]
    }
    if wrong:
        shown = "; ".join(f"{kind}: {shortened(', '.join(names))}" for kind, names in wrong.items())
        raise ValueError(
            f"the weights in {folder} are not those of a {family.model} with these settings ({shown}); copy the folder again"
        )
    return model.eval()


def architecture(config: Any, family: Family, state: Mapping[str, Tensor]) -> ModelConfig:
    """Our settings of a model. Raises ValueError at an activation that ours has not."""
    activation = ACTIVATIONS.get(config.activation_function)
    if activation is None:
        raise ValueError(
            f"activation_function {shortened(config.activation_function)} in config.json is not one of ours: {', '.join(ACTIVATIONS)}"
        )
    source, target, output = (
        state[their_name(name, family)]
        for name in ("source_embedding.weight", "target_embedding.weight", "output.weight")
    )
    heads, ffn = config.decoder_attention_heads, config.decoder_ffn_dim
    found: dict[str, Any] = {
        "d_model": config.d_model,
        "ffn": config.encoder_ffn_dim,
        "heads": config.encoder_attention_heads,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "decoder_heads": heads if heads != config.encoder_attention_heads else 0,
        "decoder_ffn": ffn if ffn != config.encoder_ffn_dim else 0,
        "activation": activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "embedding_scale": bool(config.scale_embedding),
        "embeddings": "separate"
        if not torch.equal(target, output)
        else "tied"
        if torch.equal(source, target)
        else "tied-decoder",
        "max_positions": config.max_position_embeddings,
        "positions": family.waves,
        "first_position": config.pad_token_id + 1 if family.waves == "tensor2tensor" else 0,
    }
    ours = ModelConfig(**{**found, **family.settings})
    if family.offset is None:
        return ours
    tables = [position_table(side, state, family, config.pad_token_id) for side in SIDES]
    waves = sinusoids(ours, len(tables[0]))
    if all(table.shape == waves.shape and torch.allclose(table, waves, atol=1e-3) for table in tables):
        return replace(ours, max_positions=len(waves))
    return replace(
        ours, positions="learned", first_position=0, max_positions=min(len(table) for table in tables)
    )


def position_table(side: str, state: Mapping[str, Tensor], family: Family, padding: int) -> Tensor:
    """The position vectors (L, D) of a family that has a table of them, from the first position on."""
    assert family.offset is not None
    table = state[their_name(f"{side}_positions.weight", family)]
    return table[padding + 1 if family.offset == AFTER_PADDING else family.offset :]


def our_tensor(name: str, state: Mapping[str, Tensor], family: Family, ours: Transformer) -> Tensor:
    """Our parameter of this name."""
    if name.endswith("_positions.weight"):
        return position_table(name.split("_")[0], state, family, ours.source_specials.padding)[
            : ours.config.max_positions
        ]
    tensor = state[their_name(name, family)]
    return tensor.flatten() if name == "output.bias" else tensor


def search(config: Any) -> dict[str, Any]:
    """Our search settings of a generation_config; those that it does not give stay ours. Warns where others
    would change translations."""
    found = {"beam": config.num_beams, "length_penalty": config.length_penalty}
    neutral = (None, False, 0, 1, 1.0)
    others = (
        "no_repeat_ngram_size",
        "repetition_penalty",
        "min_length",
        "min_new_tokens",
        "num_beam_groups",
        "diversity_penalty",
        "do_sample",
    )
    ignored = [name for name in others if getattr(config, name, None) not in neutral]
    if ignored:
        warnings.warn(f"of generation_config.json these are not used: {', '.join(ignored)}", stacklevel=2)
    return {name: value for name, value in found.items() if value is not None}

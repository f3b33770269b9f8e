"""`hf:NAME_OR_FOLDER`: Hugging Face's Marian, BART, mBART, M2M100, NLLB, Pegasus and FSMT models, in and out.

transformers reads the weights, from safetensors or with weights_only, and their names become ours. What a
family always has stands in FAMILIES, the rest comes from config.json; no class and no code but transformers'
own is used.

`write` makes config.json, model.safetensors and a tokenizer that `from_pretrained` reads, or
`gates.load_pruned` once sites have different numbers of heads. A model that came from a family goes out as
one. Others go out as the class that computes the same: Marian (post-norm) and Pegasus (pre-norm) have their
sinusoids as a table in the weights, so any positions can stand there; BART and mBART have a norm after the
embedding. Letters: D model width, V vocabulary, L positions.
"""

import json
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headgates.bridges.foreign import Converted, ForeignModel
from headgates.bridges.formats import read_about
from headgates.bridges.hf_vocab import (
    KIND,
    PREFIX,
    SIDES,
    HuggingFaceVocab,
    library,
    quiet,
    vocabulary,
)
from headgates.bridges.hf_vocab import load as load_vocabs
from headgates.configs.fields import shortened
from headgates.configs.schema import ModelConfig, read_search
from headgates.configs.source import ForeignOptions
from headgates.data.special_tokens import SpecialTokens
from headgates.data.vocab import Vocab
from headgates.gates import find_sites, heads_left, load_pruned, set_heads_left
from headgates.models.attention import MultiHeadAttention
from headgates.models.checkpoint import special_tokens
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
    "tokenizer_config.json",
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "target_vocab.json",
    "vocab-src.json",
    "vocab-tgt.json",
    "merges.txt",
    "source.spm",
    "target.spm",
    "sentencepiece.bpe.model",
    "spiece.model",
)

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}  # theirs -> ours

REFUSED = (
    "quantization_config",
    "auto_map",
    "adapter_config",
)  # settings that ask for other code, or for other weights

# ours -> theirs, inside a layer and outside
LAYER = {
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "self_residual.norm": "self_attn_layer_norm",
    "cross_residual.norm": "encoder_attn_layer_norm",
    "feed_residual.norm": "final_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
}

WHOLE = {
    "source_embedding": "model.encoder.embed_tokens",
    "target_embedding": "model.decoder.embed_tokens",
    "source_positions": "model.encoder.embed_positions",
    "target_positions": "model.decoder.embed_positions",
    "source_norm": "model.encoder.layernorm_embedding",
    "target_norm": "model.decoder.layernorm_embedding",
    "encoder.norm": "model.encoder.layer_norm",
    "decoder.norm": "model.decoder.layer_norm",
    "output": "lm_head",
}


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

# what vocab.json says of a tokenizer in a run folder; here vocab.json is the tokenizer's own
ABOUT = "headgates_vocab.json"

NEVER = -1e9  # the bias on the logit of a row that no piece has

ORDER = (
    "m2m_100",
    "fsmt",
    "marian",
    "bart",
    "mbart",
    "pegasus",
)  # of classes that fit, the first is taken: those with their own sinusoids


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
            f"hf:{place} is of the type {shortened(family)}; these are read: {', '.join(FAMILIES)} (NLLB "
            "is m2m_100)"
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
            f"hf:{place} is neither a folder here nor a model that the Hugging Face Hub gives ({reason}); "
            "is the name right, as in "
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
            f"{first} names weights that are not there ({', '.join(missing) or 'none'}); copy the model's "
            "folder again"
        )
    return [first, *(folder / name for name in parts)]


def convert(folder: Path, config: Mapping[str, Any], options: ForeignOptions) -> Converted:
    """The model as one of ours. Raises ValueError where its files are broken or hold what ours lacks."""
    family = FAMILIES[config["model_type"]]
    model = read_model(folder, family, config)
    sizes = [len(model.state_dict()[their_name(f"{side}_embedding.weight", family)]) for side in SIDES]
    files = {PREFIX + name: folder / name for name in TOKENIZER if (folder / name).is_file()}
    about = vocabulary(folder, model, sizes, options)
    specials = [SpecialTokens(**about[side]["specials"]) for side in SIDES]
    ours = as_ours(model, family, *specials)
    settings = {
        "search": search(model.generation_config),
        "text": {"joint": ours.config.embeddings == "tied"},
    }
    vocabs = load_vocabs(
        folder, about | {"files": {path.name: path.name for path in files.values()}}, *specials
    )
    about["files"] = {name: path.name for name, path in files.items()}
    return Converted(
        Translator(ours, *vocabs, read_search(settings["search"], folder)), files, about, settings
    )


def as_ours(model: Any, family: Family, source: SpecialTokens, target: SpecialTokens) -> Transformer:
    """A model of transformers as our own, with the heads that are left in it."""
    state = {name: tensor.detach().float() for name, tensor in model.state_dict().items()}
    shape = architecture(model.config, family, state)
    pieces, target_pieces = (len(state[their_name(f"{side}_embedding.weight", family)]) for side in SIDES)
    heads = {site.name: site.heads for site in find_sites(model)}
    ours = Transformer(
        shape, pieces, target_pieces, heads, source_specials=source, target_specials=target
    ).eval()
    set_heads_left(ours, heads_left(model))
    ours.load_state_dict({name: our_tensor(name, state, family, ours) for name in ours.state_dict()})
    return ours


def read_model(folder: Path, family: Family, config: Mapping[str, Any]) -> Any:
    """The model as transformers has it, in fp32, without the heads that `save_pruned` or `--to hf` wrote none
    of.

    Raises ValueError where weights and settings are broken or do not fit each other."""
    transformers = library()
    if asked := [name for name in REFUSED if config.get(name)]:
        raise ValueError(
            f"{folder / 'config.json'} has {asked[0]}, which is not read: save the model without it, in "
            "fp32, and try again"
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
            f"the weights and settings in {folder} do not make a {family.model} ({reason}); copy the "
            "folder again"
        ) from error
    wrong = {
        kind: sorted(map(str, info[f"{kind}_keys"]))
        for kind in ("missing", "unexpected", "mismatched")
        if info[f"{kind}_keys"]
    }
    if wrong:
        shown = "; ".join(f"{kind}: {shortened(', '.join(names))}" for kind, names in wrong.items())
        raise ValueError(
            f"the weights in {folder} are not those of a {family.model} with these settings ({shown}); "
            "copy the folder again"
        )
    return model.eval()


def architecture(config: Any, family: Family, state: Mapping[str, Tensor]) -> ModelConfig:
    """Our settings of a model. Raises ValueError at an activation that ours has not."""
    activation = ACTIVATIONS.get(config.activation_function)
    if activation is None:
        raise ValueError(
            f"activation_function {shortened(config.activation_function)} in config.json is not one of "
            f"ours: {', '.join(ACTIVATIONS)}"
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


def write(translator: Translator, folder: Path) -> None:
    """The files of a model without gates, in a folder that holds its vocab* files.

    Raises ValueError, naming the setting and what to do, where no class of Hugging Face's computes the
    same."""
    safetensors = library("safetensors.torch")
    model = translator.model
    name = family_of(model)
    family = FAMILIES[name]
    write_tokenizer(translator, folder)
    state = their_state(model, family)
    safetensors.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    settings = their_settings(model, name) | {"architectures": [family.model], "model_type": name}
    left = heads_left(model)
    if not all(row.all() for row in left.values()):
        settings["headgates"] = {
            "heads": {site.name: row.nonzero().flatten().tolist() or [0] for site, row in left.items()}
        }
    dump(folder / "config.json", settings)
    dump(folder / "generation_config.json", search_settings(translator))


def family_of(model: Transformer) -> str:
    """The model_type of the class that computes the same."""
    config = model.config
    needed = {
        "norm": (config.norm_of("decoder") == config.norm, "--model.decoder-norm same"),
        "final_norm": (config.norm == "post" or config.final_norm == "both", "--model.final-norm both"),
        "norm_eps": (config.norm_eps == 1e-5, "--model.norm-eps 1e-5"),
        "forced": (len(model.target_specials.forced) <= 1, "at most one forced first piece"),
    }
    if wrong := [cure for fits, cure in needed.values() if not fits]:
        raise ValueError(
            f"no translation model of Hugging Face is built so: it would need {wrong[0]}; export to torch "
            "or onnx instead"
        )
    return next(name for name in ORDER if fits(model, FAMILIES[name]))


def fits(model: Transformer, family: Family) -> bool:
    """Whether a family's class can compute what the model does; an output bias may be zeros there."""
    config = model.config
    wanted = {name: value for name, value in family.settings.items() if name in ("norm", "embedding_norm")}
    if any(getattr(config, name) != value for name, value in wanted.items()):
        return False
    if family.waves != "tensor2tensor":
        return True
    padding = {model.source_specials.padding + 1, model.target_specials.padding + 1}
    same_positions = config.positions == "tensor2tensor" and padding == {config.first_position}
    shared = family.offset == AFTER_PADDING or config.embeddings == "tied"  # FSMT's tables are apart
    begins = model.target_specials.beginning != model.target_specials.padding  # they give padding no position
    return same_positions and shared and begins and not config.output_bias


def shared_rows(model: Transformer, family: Family) -> int:
    """Rows of both embeddings, for a class that has one number for both; else 0."""
    if family.model == "FSMTForConditionalGeneration" or (
        family.model == "MarianMTModel" and model.config.embeddings != "tied"
    ):
        return 0
    return max(model.source_vocab, model.target_vocab)


def their_state(model: Transformer, family: Family) -> dict[str, Tensor]:
    """The weights by their names. A smaller vocabulary is filled up with rows that are never read and never
    produced."""
    config, state = model.config, dict(model.state_dict())
    if not config.output_bias and family.settings["output_bias"]:
        state["output.bias"] = torch.zeros(model.target_vocab)
    if family.offset is not None:
        count = config.max_positions if config.positions == "learned" else positions(config)
        first = model.source_specials.padding + 1 if family.offset == AFTER_PADDING else family.offset
        for side in SIDES:
            learned = state.get(f"{side}_positions.weight")
            table = sinusoids(config, count) if learned is None else learned
            state[f"{side}_positions.weight"] = torch.cat([torch.zeros(first, config.d_model), table])
    rows = shared_rows(model, family)
    if rows:
        for name in ("source_embedding.weight", "target_embedding.weight", "output.weight", "output.bias"):
            if name in state and len(state[name]) < rows:
                missing = (rows - len(state[name]), *state[name].shape[1:])
                state[name] = torch.cat(
                    [state[name], torch.full(missing, NEVER if name == "output.bias" else 0.0)]
                )
    found = {their_name(name, family): tensor for name, tensor in whole_attentions(model, state).items()}
    if "final_logits_bias" in found:
        found["final_logits_bias"] = found["final_logits_bias"][None]
    if config.embeddings == "tied":  # one table by the name that ties the others
        shared = found.pop("model.encoder.embed_tokens.weight")
        for name in ("model.decoder.embed_tokens.weight", "lm_head.weight"):
            found.pop(name, None)
        found["model.shared.weight"] = shared
    elif rows:
        found["model.shared.weight"] = found["model.decoder.embed_tokens.weight"]
    elif config.embeddings == "tied-decoder" and family.model == "MarianMTModel":
        found.pop("lm_head.weight")
    return {name: tensor.detach().clone().contiguous() for name, tensor in found.items()}


def whole_attentions(model: Transformer, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights, where an attention without heads has one that adds nothing: their classes cannot run
    without any."""
    found = dict(state)
    for name, module in model.named_modules():
        if not isinstance(module, MultiHeadAttention) or module.heads:
            continue
        width, d_model = module.head_width, model.config.d_model
        for projection in ("q_proj", "k_proj", "v_proj"):
            found[f"{name}.{projection}.weight"] = torch.zeros(width, d_model)
            found[f"{name}.{projection}.bias"] = torch.zeros(width)
        found[f"{name}.out_proj.weight"] = torch.zeros(d_model, width)
    return found


def positions(config: ModelConfig) -> int:
    """How many positions are written: theirs end."""
    return config.max_positions if config.positions == "learned" else max(config.max_positions, 512)


def their_settings(model: Transformer, name: str) -> dict[str, Any]:
    """The content of config.json."""
    config, family, specials = model.config, FAMILIES[name], model.target_specials
    rows, tied = shared_rows(model, family), config.embeddings == "tied"
    sizes: dict[str, Any] = {"vocab_size": rows or model.source_vocab}
    if name == "fsmt":
        sizes = {
            "src_vocab_size": model.source_vocab,
            "tgt_vocab_size": model.target_vocab,
            "langs": ["source", "target"],
        }
    elif name == "marian":
        sizes |= {"decoder_vocab_size": rows or model.target_vocab, "share_encoder_decoder_embeddings": tied}
    return sizes | {
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_ffn_dim": config.ffn,
        "decoder_ffn_dim": config.decoder_ffn or config.ffn,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads_of_decoder,
        "activation_function": next(
            theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation
        ),
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "max_position_embeddings": positions(config),
        "scale_embedding": config.embedding_scale,
        "tie_word_embeddings": tied or (name == "marian" and config.embeddings == "tied-decoder"),
        "is_encoder_decoder": True,
        "pad_token_id": specials.padding,
        "bos_token_id": specials.beginning,
        "eos_token_id": specials.end,
        "decoder_start_token_id": specials.beginning,
        "dtype": "float32",
    }


def search_settings(translator: Translator) -> dict[str, Any]:
    """The content of generation_config.json: `generate` then searches as we do, but for the length limit,
    which is the last position."""
    specials, search = translator.model.target_specials, translator.search
    found: dict[str, Any] = {
        "num_beams": search.beam,
        "length_penalty": search.length_penalty,
        "max_length": positions(translator.model.config),
        "forced_eos_token_id": specials.end,
        "pad_token_id": specials.padding,
        "eos_token_id": specials.end,
        "decoder_start_token_id": specials.beginning,
        "suppress_tokens": list(specials.never_produced),
    }
    if search.beam > 1:
        found["early_stopping"] = True  # as many ended hypotheses as the beam is wide
    if specials.forced:
        found["forced_bos_token_id"] = specials.forced[0]
    return found


def write_tokenizer(translator: Translator, folder: Path) -> None:
    """The tokenizer in its own library's files in the place of our vocab*, and what we read it by."""
    source, target = translator.source_vocab, translator.target_vocab
    for path in folder.glob("vocab*"):
        path.unlink()
    if isinstance(source, HuggingFaceVocab):
        about = json.loads(source.path.read_text(encoding="utf-8"))
        for name, own in about["files"].items():
            shutil.copyfile(source.path.parent / name, folder / own)
    elif isinstance(source, Vocab) and isinstance(target, Vocab):
        about = {"kind": KIND, "class": "MarianTokenizer", "files": {}, "languages": {}}
        write_pieces(source, target, folder)
        for side, vocab in zip(SIDES, (source, target), strict=True):
            ids = vars(vocab.specials) | {"forced": list(vocab.specials.forced)}
            about[side] = {"size": len(vocab), "prefix": [], "suffix": [], "specials": ids}
    else:
        raise ValueError(
            f"the tokenizer in {source.path.parent} is none that Hugging Face's library has a class for; "
            "export to torch, onnx or ct2"
        )
    about["files"] = {path.name: path.name for path in sorted(folder.iterdir()) if path.name != "export.json"}
    settings = folder / "tokenizer_config.json"
    known = read_settings(settings) if settings.is_file() else {}
    code = {
        f"{side[:3].replace('sou', 'src').replace('tar', 'tgt')}_lang": code
        for side, code in about["languages"].items()
    }
    dump(
        settings,
        known | {"tokenizer_class": about["class"]} | (code if about["class"] != "MarianTokenizer" else {}),
    )
    about["files"][settings.name] = settings.name
    dump(folder / ABOUT, about)


def write_pieces(source: Vocab, target: Vocab, folder: Path) -> None:
    """SentencePiece models as a MarianTokenizer has them, their ids in vocab.json."""
    names = [{vocab.pieces([i])[0]: i for i in range(len(vocab))} for vocab in (source, target)]
    if any(len(each) != len(vocab) for each, vocab in zip(names, (source, target), strict=True)):
        raise ValueError("the vocabulary has a piece twice; a MarianTokenizer tells ids by their pieces")
    shutil.copyfile(source.path, folder / "source.spm")
    shutil.copyfile(target.path, folder / "target.spm")
    dump(folder / "vocab.json", names[0])
    settings: dict[str, Any] = {"model_max_length": 512}
    for token, i in {
        "unk_token": source.specials.unknown,
        "eos_token": source.specials.end,
        "pad_token": source.specials.padding,
    }.items():
        settings[token] = source.pieces([i])[0]
    if source is not target:
        dump(folder / "target_vocab.json", names[1])
        settings["separate_vocabs"] = True
    dump(folder / "tokenizer_config.json", settings)


def dump(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def open(folder: Path, threads: int = 0) -> Translator:
    """The model of a folder that `write` wrote, read by its class in transformers, as our own Transformer.
    threads: of torch, and so of the whole process; 0 leaves them. Raises ValueError at a file that is missing
    or broken."""
    about = read_about(folder)
    if threads:
        torch.set_num_threads(threads)
    settings = read_settings(folder / "config.json")
    family = FAMILIES[settings["model_type"]]
    specials = special_tokens(about["architecture"])
    model = as_ours(read_model(folder, family, settings), family, *specials)
    vocabs = load_vocabs(folder, read_settings(folder / ABOUT), *specials)
    return Translator(model, *vocabs, read_search(about["search"], folder))

"""`hf:NAME_OR_FOLDER`: Hugging Face's Marian, BART, mBART, M2M100, NLLB, Pegasus and FSMT models, in and out,
and those of T5's kin (hf_t5.py).

transformers reads the weights, from safetensors or with weights_only, and their names become ours. What a
family always has stands in MODEL_TYPES, the rest comes from config.json; no class and no code but
transformers' own is used.

`write` makes config.json, model.safetensors and a tokenizer that `from_pretrained` reads, or
`gates.load_pruned` once sites have different numbers of heads. A model that came from a family goes out as
one. Others go out as the class that computes the same: Marian (post-norm) and Pegasus (pre-norm) have their
sinusoids as a table in the weights, so any positions can stand there; BART and mBART have a norm after the
embedding. Letters: D model width, V vocabulary, L positions.
"""

import json
import math
import re
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headgates.bridges import hf_t5
from headgates.bridges.foreign import (
    OUR_TABLES,
    Converted,
    ForeignModel,
    fairseq_name,
    our_activation,
    position_table,
    shared_tables,
)
from headgates.configs.fields import shortened
from headgates.configs.json_file import load_json
from headgates.configs.own_file import own_files
from headgates.configs.settings import ModelConfig, read_search
from headgates.configs.source import ForeignOptions
from headgates.data.hf_vocab import (
    KIND,
    LANGUAGE_OPTIONS,
    PREFIX,
    SIDES,
    HuggingFaceVocab,
    hub_folder,
    library,
    quiet,
    vocabulary,
)
from headgates.data.hf_vocab import load as load_vocabs
from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import reworded
from headgates.data.vocab import Vocab
from headgates.gates import ALL_KINDS, KINDS, find_sites, heads_left, load_pruned, set_heads_left
from headgates.gates.folder_sizes import check_folder
from headgates.gates.pruned_folder import check_keys, numbers_left
from headgates.models.attention import MultiHeadAttention
from headgates.models.checkpoint import as_json
from headgates.models.description import Description, table_length
from headgates.models.positions import sinusoids
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator

WEIGHT_FILES = ("model*.safetensors*", "pytorch_model*.bin*")  # with their index, where they are in parts

TOKENIZER_FILES = (
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

FOLDER_FILES = ("config.json", "generation_config.json", *TOKENIZER_FILES)

# settings that ask for other code, or for other weights
REFUSED = ("quantization_config", "auto_map", "adapter_config")

THEIR_SETTINGS = {  # ours -> theirs in config.json
    "d_model": "d_model",
    "ffn": "encoder_ffn_dim",
    "decoder_ffn": "decoder_ffn_dim",
    "heads": "encoder_attention_heads",
    "decoder_heads": "decoder_attention_heads",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "activation": "activation_function",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "embedding_scale": "scale_embedding",
    "max_positions": "max_position_embeddings",
}

FOLDER_CURE = "copy the model's folder again"


@dataclass(frozen=True)
class Family:
    """What all models of one class have.

    norm, embedding_norm, output_bias: as in ModelConfig. offset: rows of its table of positions before the
    first one; None where it has no table, but tensor2tensor's sinusoids. A table may hold any positions,
    unless it is FSMT's own."""

    model: str  # the class in transformers
    norm: str
    embedding_norm: bool
    output_bias: bool
    offset: int | None
    own_waves: bool = False

    @property
    def one_size(self) -> bool:
        """Whether the class has one number of rows for both embeddings."""
        return self.offset != AFTER_PADDING


AFTER_PADDING = -1  # an offset: the row after that with the number of the padding, as in fairseq

# by model_type; a model of ours goes out as the first that fits, so those with their own sinusoids come first
MODEL_TYPES = {
    "m2m_100": Family("M2M100ForConditionalGeneration", "pre", False, False, None, own_waves=True),
    "fsmt": Family("FSMTForConditionalGeneration", "post", False, False, AFTER_PADDING, own_waves=True),
    "marian": Family("MarianMTModel", "post", False, True, 0),
    "bart": Family("BartForConditionalGeneration", "post", True, True, 2),
    "mbart": Family("MBartForConditionalGeneration", "pre", True, True, 2),
    "pegasus": Family("PegasusForConditionalGeneration", "pre", False, True, 0),
}

# what vocab.json says of a tokenizer in a run folder; here vocab.json is the tokenizer's own
HEADGATES_ABOUT = "headgates_vocab.json"

# Of translations. `generate` stops at the last position only, and so would a pruned model that never ends.
# This is between that and our own limit, for bytes and for languages with longer words than the source's.
LONGEST_OUTPUTS = {"max_ratio": 3.0, "max_extra": 50}

# fields of generation_config.json at which they change nothing, where that is not nothing at all
NEUTRAL = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "guidance_scale": 1.0,
    "num_beam_groups": 1,
}
# those that are read, or on which no output of a search depends; those of sampling count with do_sample alone
NO_MATTER = re.compile(
    "num_beams|length_penalty|min_length|min_new_tokens|.*_token_id|_.*|transformers_version"
    "|output_.*|return_dict_in_generate|num_return_sequences|use_cache|cache_.*|max_cache_len|low_memory"
    "|.*compile.*|prefill_chunk_size|continuous_batching_config|remove_invalid_values|.*assistant.*"
    "|.*_lookbehind|prompt_lookup_num_tokens|max_matching_ngram_size|speculation_type|use_mtp"
    "|temperature|top_.|min_p|typical_p|.*_cutoff"
)

NEVER_BIAS = -1e9  # the bias on the logit of a row that no piece has

LONGEST_IN_BYTES = 800  # of a training sentence, where a piece is a byte

SHARED_TABLE = "model.shared.weight"  # the table that ties the others


def their_name(name: str, family: Family) -> str:
    """What our parameter of this name is called in a model of the family."""
    if family.one_size and name.startswith("output."):
        return {"output.weight": "lm_head.weight", "output.bias": "final_logits_bias"}[name]
    return f"model.{fairseq_name(name)}"


def read(place: str, options: ForeignOptions) -> ForeignModel:
    """The model of a folder, or of a name in the Hub. Raises ValueError where it is missing, broken, or of no
    family that we know."""
    folder = snapshot(place)
    own_files(folder)
    config = read_settings(folder / "config.json")
    family = config.get("model_type")
    known = (*MODEL_TYPES, *hf_t5.T5_CLASSES)
    if str(family) not in known:  # it may be of any kind
        raise ValueError(
            f"hf:{place} is of the type {shortened(family)}; these are read: {', '.join(known)} (NLLB is "
            "m2m_100; MADLAD-400 and ByT5 are t5)"
        )
    files = [folder / name for name in FOLDER_FILES if (folder / name).is_file()] + weight_files(folder)
    name = folder.resolve().name if Path(place).is_dir() else place.rsplit("/", 1)[-1]
    return ForeignModel(name, files, lambda: convert_folder(folder, config, options))


def snapshot(place: str) -> Path:
    """The folder of a model: its own, or one that the Hub's client keeps. Weights are safetensors where there
    are any."""
    if Path(place).is_dir():
        return Path(place)
    library()
    found = hub_folder(place, [*FOLDER_FILES, WEIGHT_FILES[0]])
    return found if list(found.glob(WEIGHT_FILES[0])) else hub_folder(place, [WEIGHT_FILES[1]])


def read_settings(path: Path) -> dict[str, Any]:
    try:
        return dict(load_json(path, dict, cure=FOLDER_CURE))
    except FileNotFoundError:
        raise ValueError(
            f"{path.parent} has no {path.name}; expected a folder as save_pretrained writes it"
        ) from None


def weight_files(folder: Path) -> list[Path]:
    """The files of the weights, of the first kind of WEIGHT_FILES that is there. Raises ValueError where
    there are none."""
    found = next((files for name in WEIGHT_FILES if (files := sorted(folder.glob(name)))), None)
    if found is None:
        raise ValueError(f"{folder} has no weights; expected model.safetensors or pytorch_model.bin")
    return found


def convert_folder(folder: Path, config: Mapping[str, Any], options: ForeignOptions) -> Converted:
    """The model as one of ours. Raises ValueError where its files are broken or hold what ours lacks."""
    model = read_model(folder, config)
    sizes = table_sizes(model)
    files = {PREFIX + name: folder / name for name in TOKENIZER_FILES if (folder / name).is_file()}
    about = vocabulary(folder, model, sizes, options)
    specials = [SpecialTokens(**about[side]["specials"]) for side in SIDES]
    if specials[1].unknown in suppressed(model.generation_config):
        specials[1] = replace(specials[1], writes_unknown=False)
    ours = as_ours(model, *specials)
    settings: dict[str, Any] = {
        "search": search(model, specials[1].never_produced),
        "text": {"joint": ours.config.embeddings == "tied"},
    }
    if about["class"] == "ByT5Tokenizer":
        settings["text"]["max_length"] = LONGEST_IN_BYTES
    names = {path.name: path.name for path in files.values()}
    vocabs = load_vocabs(folder, about | {"files": names}, *specials)
    about["files"] = {name: path.name for name, path in files.items()}
    return Converted(
        Translator(ours, *vocabs, read_search(settings["search"], folder)), files, about, settings
    )


def class_name(model_type: str) -> str:
    """The class in transformers."""
    return hf_t5.T5_CLASSES.get(model_type) or MODEL_TYPES[model_type].model


def table_sizes(model: Any) -> tuple[int, int]:
    """Rows of the embeddings of the two sides."""
    if model.config.model_type in hf_t5.T5_CLASSES:
        return (len(model.shared.weight),) * 2
    family, state = MODEL_TYPES[model.config.model_type], model.state_dict()
    source, target = (len(state[their_name(f"{side}_embedding.weight", family)]) for side in SIDES)
    return source, target


def as_ours(model: Any, source: SpecialTokens, target: SpecialTokens) -> Transformer:
    """A model of transformers as our own, with the heads that are left in it and its weights themselves."""
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    tensor: Callable[[str], Tensor]
    if model.config.model_type in hf_t5.T5_CLASSES:
        config = hf_t5.settings_of_t5(model, state)
        tensor = partial(hf_t5.tensor_of_t5, model=model, state=state)
    else:
        family = MODEL_TYPES[model.config.model_type]
        config = our_settings(model.config, family, state)
        tensor = partial(our_tensor, state=state, family=family, config=config, padding=source.padding)
    heads = {site.name: site.heads for site in find_sites(model, ALL_KINDS)}
    with torch.device("meta"):
        ours = Transformer(
            config, *table_sizes(model), heads=heads, source_specials=source, target_specials=target
        )
    set_heads_left(ours, heads_left(model, ALL_KINDS))
    return ours.assign({name: tensor(name) for name in ours.state_dict()})


def read_model(folder: Path, config: Mapping[str, Any]) -> Any:
    """The model as transformers has it, in bf16 where all its weights are in it and else in fp32, without the
    heads that `save_pruned` or `--to hf` wrote none of.

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
    plain: dict[str, Any] = {"attn_implementation": "eager"}
    name = class_name(config["model_type"])
    with reworded(f"the weights and settings in {folder} do not make a {name}", FOLDER_CURE), quiet():
        plain["dtype"] = stored_type(folder)
        if "headgates" in config:
            return load_pruned(folder, **plain)
        cls = getattr(transformers, name)
        check_folder(folder, config, lambda: cls(cls.config_class.from_dict(dict(config))))
        # weights of other sizes are named by `check_keys`, not in a report of transformers that is not shown
        found = dict(local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True)
        model, info = cls.from_pretrained(str(folder), **plain, **found)
    check_keys(folder, info)
    return model.eval()


def stored_type(folder: Path) -> torch.dtype:
    """The type that a model's weights are read in: bf16 where all are stored in it."""
    open_file = library("safetensors").safe_open
    stored = set()
    for path in weight_files(folder):
        if path.suffix == ".safetensors":
            with open_file(path, "pt") as file:
                stored |= {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118  # no mapping
        elif path.suffix != ".json":
            return torch.float32
    return torch.bfloat16 if stored == {"BF16"} else torch.float32


def our_settings(config: Any, family: Family, state: Mapping[str, Tensor]) -> ModelConfig:
    """Our settings of a model. Raises ValueError at an activation that ours has not."""
    found = {ours: getattr(config, theirs) for ours, theirs in THEIR_SETTINGS.items()}
    found["activation"] = our_activation(found["activation"], "activation_function")
    tables = (state[their_name(f"{name}.weight", family)] for name in OUR_TABLES)
    ours = ModelConfig(
        **found,
        norm=family.norm,  # type: ignore[arg-type]  # one of ModelConfig's
        embedding_norm=family.embedding_norm,
        output_bias=family.output_bias,
        embeddings=shared_tables(*tables),  # type: ignore[arg-type]
        positions="tensor2tensor" if family.own_waves else "sinusoidal-halves",
        first_position=config.pad_token_id + 1 if family.own_waves else 0,
    )
    if family.offset is None:
        return ours
    rows = [our_positions(side, state, family, config.pad_token_id) for side in SIDES]
    waves = sinusoids(ours, len(rows[0]))
    near = 1e-3 if rows[0].dtype == torch.float32 else torch.finfo(rows[0].dtype).eps
    if all(table.shape == waves.shape and torch.allclose(table.float(), waves, atol=near) for table in rows):
        return replace(ours, max_positions=len(waves))
    return replace(ours, positions="learned", first_position=0, max_positions=min(map(len, rows)))


def first_row(family: Family, padding: int) -> int:
    """The row of the first position in a family's table of them."""
    return padding + 1 if family.offset == AFTER_PADDING else family.offset or 0


def our_positions(side: str, state: Mapping[str, Tensor], family: Family, padding: int) -> Tensor:
    """The position vectors (L, D) of a family that has a table of them, from the first position on."""
    return state[their_name(f"{side}_positions.weight", family)][first_row(family, padding) :]


def our_tensor(
    name: str, state: Mapping[str, Tensor], family: Family, config: ModelConfig, padding: int
) -> Tensor:
    """Our parameter of this name."""
    if name.endswith("_positions.weight"):
        return our_positions(name.split("_")[0], state, family, padding)[: config.max_positions]
    tensor = state[their_name(name, family)]
    return tensor.flatten() if name == "output.bias" else tensor


def suppressed(config: Any) -> set[int]:
    """The tokens that `generate` never writes by a generation_config."""
    words = [each[0] for each in config.bad_words_ids or () if len(each) == 1]
    return {*words, *(config.suppress_tokens or ())}


def search(model: Any, never: Collection[int]) -> dict[str, Any]:
    """Our search settings of a model's generation_config; those that it does not give stay ours. never: the
    tokens that our search never produces. Warns of each other field by which `generate` may say something
    else."""
    config, positions = model.generation_config, getattr(model.config, "max_position_embeddings", math.inf)
    found = {"beam": config.num_beams, "length_penalty": config.length_penalty} | LONGEST_OUTPUTS
    found["min_length"] = config.min_new_tokens
    if found["min_length"] is None and config.min_length is not None:
        found["min_length"] = config.min_length - (config.min_length > 0)  # it counts the beginning
    ignored = []
    for name, value in config.to_dict().items():
        if name in ("suppress_tokens", "bad_words_ids"):
            value = [each for each in value or () if each not in never and each not in [[i] for i in never]]
        if name == "early_stopping" and value is True:  # as ours
            continue
        if name == "max_length" and value and value >= positions:  # it cuts no line
            continue
        if value and value != NEUTRAL.get(name) and not NO_MATTER.fullmatch(name):
            ignored.append(f"{name} {shortened(value)}")
    if ignored:
        warnings.warn(f"of generation_config.json these are not used: {', '.join(ignored)}", stacklevel=2)
    return {name: value for name, value in found.items() if value is not None}


def write(translator: Translator, folder: Path) -> None:
    """The files of a model without gates, in a folder that holds its vocab* files.

    Raises ValueError, naming the setting and what to do, where no class of Hugging Face's computes the
    same."""
    model = translator.model
    if hf_t5.is_like_t5(model):
        check_needed(hf_t5.t5_needs(model))
        state = hf_t5.t5_state(model, added_heads(model))
        settings = hf_t5.t5_config(model) | tokens(model)
    else:
        name = family_of(model)
        state, settings = their_state(model, MODEL_TYPES[name]), their_settings(model, name)
    write_tokenizer(translator, folder)
    library("safetensors.torch").save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    left = heads_left(model, ALL_KINDS)
    if not all(row.all() for row in left.values()):
        heads = numbers_left(model)
        # an attention keeps one that adds nothing, as in `their_state`
        heads |= {site.name: [0] for site in left if site.kind in KINDS and not heads[site.name]}
        settings["headgates"] = {"heads": heads}
    dump(folder / "config.json", settings)
    dump(folder / "generation_config.json", search_settings(translator))


def family_of(model: Transformer) -> str:
    """The model_type of the class that computes the same."""
    config = model.config
    check_needed(
        {
            "layer norms": config.norm_kind == "layer",
            "position vectors": config.positions != "relative",
            "linear layers with biases": config.biases,
            "plain feed-forward layers": config.feed_forward == "plain",
            "heads of d_model / heads": not config.head_width,
            "layer norms at the same place in both stacks": config.norm_of("decoder") == config.norm,
            "a last layer norm of both stacks": config.norm == "post" or config.final_norm == "both",
            "layer norms with an eps of 1e-5": config.norm_eps == 1e-5,
            "at most one forced first piece": len(model.target_specials.forced) <= 1,
        }
    )
    return next(name for name, family in MODEL_TYPES.items() if family_fits(model, family))


def check_needed(needed: Mapping[str, bool]) -> None:
    """Raises ValueError at the first that is not so."""
    if wrong := [cure for cure, is_so in needed.items() if not is_so]:
        raise ValueError(
            f"no translation model of Hugging Face is built so: it would need {wrong[0]}; export to onnx "
            "instead"
        )


def family_fits(model: Transformer, family: Family) -> bool:
    """Whether a family's class can compute what the model does; an output bias may be zeros there."""
    config = model.config
    if (config.norm, config.embedding_norm) != (family.norm, family.embedding_norm):
        return False
    if not family.own_waves:
        return True
    padding = {model.source_specials.padding + 1, model.target_specials.padding + 1}
    same_positions = config.positions == "tensor2tensor" and padding == {config.first_position}
    begins = model.target_specials.beginning != model.target_specials.padding  # they give padding no position
    tables = not family.one_size or config.embeddings == "tied"
    return same_positions and tables and begins and not config.output_bias


def shared_rows(model: Transformer, family: Family) -> int:
    """Rows of both embeddings, for a class that has one number for both; else 0."""
    apart = family.model == "MarianMTModel" and model.config.embeddings != "tied"
    return max(model.source_vocab, model.target_vocab) if family.one_size and not apart else 0


def their_state(model: Transformer, family: Family) -> dict[str, Tensor]:
    """The weights by their names. A smaller vocabulary is filled up with rows that are never read and never
    produced."""
    config, state = model.config, dict(model.state_dict() | added_heads(model))
    if family.output_bias:
        state.setdefault("output.bias", torch.zeros(model.target_vocab))
    if family.offset is not None:
        first = first_row(family, model.source_specials.padding)
        for side in SIDES:
            state[f"{side}_positions.weight"] = F.pad(position_table(model, side), (0, 0, first, 0))
    rows = shared_rows(model, family)
    for name in (f"{table}.weight" for table in OUR_TABLES):
        state[name] = F.pad(state[name], (0, 0, 0, max(0, rows - len(state[name]))))
    found = {their_name(name, family): tensor for name, tensor in state.items()}
    if family.output_bias:
        bias = found["final_logits_bias"]
        found["final_logits_bias"] = F.pad(bias, (0, max(0, rows - len(bias))), value=NEVER_BIAS)[None]
    tied = [their_name(f"{table}.weight", family) for table in OUR_TABLES]
    if rows:
        found[SHARED_TABLE] = found[tied[1]]
    if config.embeddings != "tied" or not family.one_size:
        marian = config.embeddings == "tied-decoder" and family.model == "MarianMTModel"
        tied = tied[2:] if marian else []
    return {name: tensor.detach().clone().contiguous() for name, tensor in found.items() if name not in tied}


def added_heads(model: Transformer) -> dict[str, Tensor]:
    """The weights of a head that adds nothing, for every attention without any: their classes cannot run
    without."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention) and not module.heads:
            for own, tensor in module.state_dict().items():
                if own != "out_proj.bias":
                    rows = 1 if own == "distances.weight" else module.head_width
                    found[f"{name}.{own}"] = tensor.new_zeros([size or rows for size in tensor.shape])
    return found


def their_settings(model: Transformer, name: str) -> dict[str, Any]:
    """The content of config.json."""
    config, family = model.config, MODEL_TYPES[name]
    rows, tied = shared_rows(model, family), config.embeddings == "tied"
    sizes: dict[str, Any] = {"vocab_size": rows or model.source_vocab}
    if not family.one_size:
        sizes = {
            "src_vocab_size": model.source_vocab,
            "tgt_vocab_size": model.target_vocab,
            "langs": ["source", "target"],
        }
    elif name == "marian":
        sizes |= {"decoder_vocab_size": rows or model.target_vocab, "share_encoder_decoder_embeddings": tied}
    own = asdict(config) | {
        "decoder_ffn": config.decoder_ffn or config.ffn,
        "decoder_heads": config.heads_of_decoder,
        "max_positions": table_length(config),
    }
    return (
        sizes
        | {theirs: own[ours] for ours, theirs in THEIR_SETTINGS.items()}
        | tokens(model)
        | {
            "architectures": [family.model],
            "model_type": name,
            "bos_token_id": model.target_specials.beginning,
            "tie_word_embeddings": tied or (name == "marian" and config.embeddings == "tied-decoder"),
            "is_encoder_decoder": True,
            "dtype": "float32",
        }
    )


def tokens(model: Transformer) -> dict[str, int]:
    """The special tokens of the target, as both of their files of settings name them."""
    specials = model.target_specials
    return {
        "pad_token_id": specials.padding,
        "eos_token_id": specials.end,
        "decoder_start_token_id": specials.beginning,
    }


def search_settings(translator: Translator) -> dict[str, Any]:
    """The content of generation_config.json: `generate` then searches as we do, but for the length limit,
    which is the last position."""
    specials, search = translator.model.target_specials, translator.search
    found = tokens(translator.model) | {
        "num_beams": search.beam,
        "length_penalty": search.length_penalty,
        "max_length": table_length(translator.model.config),
        "forced_eos_token_id": specials.end,
        "suppress_tokens": list(specials.never_produced),
    }
    if search.min_length:
        found["min_new_tokens"] = search.min_length
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
        about = load_json(source.path, dict, cure=FOLDER_CURE)
        for name, own in about["files"].items():
            shutil.copyfile(source.path.parent / name, folder / own)
    elif isinstance(source, Vocab) and isinstance(target, Vocab):
        about = {"kind": KIND, "class": "MarianTokenizer", "languages": {}}
        write_pieces(source, target, folder)
        for side, vocab in zip(SIDES, (source, target), strict=True):
            about[side] = {
                "size": len(vocab),
                "prefix": [],
                "suffix": [],
                "specials": as_json(vocab.specials),
            }
    else:
        raise ValueError(
            f"the tokenizer in {source.path.parent} is none that Hugging Face's library has a class for; "
            "export to onnx or ct2"
        )
    path = folder / "tokenizer_config.json"
    settings = read_settings(path) if path.is_file() else {}
    settings["tokenizer_class"] = about["class"]
    if about["class"] != "MarianTokenizer":
        settings |= {LANGUAGE_OPTIONS[side]: code for side, code in about["languages"].items()}
    dump(path, settings)
    about["files"] = {path.name: path.name for path in sorted(folder.iterdir()) if path.name != "export.json"}
    dump(folder / HEADGATES_ABOUT, about)


def write_pieces(source: Vocab, target: Vocab, folder: Path) -> None:
    """SentencePiece models as a MarianTokenizer has them, their ids in vocab.json."""
    names = [{vocab.pieces([i])[0]: i for i in range(len(vocab))} for vocab in (source, target)]
    if [len(source), len(target)] != list(map(len, names)):
        raise ValueError("the vocabulary has a piece twice; a MarianTokenizer tells ids by their pieces")
    shutil.copyfile(source.path, folder / "source.spm")
    shutil.copyfile(target.path, folder / "target.spm")
    dump(folder / "vocab.json", names[0])
    own = (source.specials.unknown, source.specials.end, source.specials.padding)
    unknown, end, padding = source.pieces(own)
    settings: dict[str, Any] = {"unk_token": unknown, "eos_token": end, "pad_token": padding}
    if source is not target:
        dump(folder / "target_vocab.json", names[1])
        settings["separate_vocabs"] = True
    dump(folder / "tokenizer_config.json", settings | {"model_max_length": 512})


def dump(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def open(folder: Path, shape: Description, threads: int) -> Translator:
    """The model of a folder that `write` wrote, read by its class in transformers, as our own Transformer.
    Raises ValueError at a file that is missing or broken."""
    settings = read_settings(folder / "config.json")
    specials = shape.source_specials, shape.target_specials
    model = as_ours(read_model(folder, settings), *specials)
    return Translator(model, *load_vocabs(folder, read_settings(folder / HEADGATES_ABOUT), *specials))

"""A Hugging Face folder: config.json, model.safetensors and a tokenizer that `from_pretrained` reads, or
`gates.load_pruned` once heads are gone from some sites.

A model that came from a family goes out as one. Others go out as the class that computes the same: Marian
(post-norm) and Pegasus (pre-norm) have their sinusoids as a table in the weights, so any positions can stand
there; BART and mBART have a norm after the embedding. Letters: D model width, V vocabulary, L positions."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headgates.bridges.formats import read_about
from headgates.bridges.huggingface import (
    ACTIVATIONS,
    AFTER_PADDING,
    FAMILIES,
    Family,
    read_settings,
    their_name,
)
from headgates.bridges.huggingface_vocab import KIND, SIDES, HuggingFaceVocab, library, quiet
from headgates.bridges.huggingface_vocab import load as load_vocabs
from headgates.configs.schema import ModelConfig, read_search
from headgates.data.special_tokens import SpecialTokens
from headgates.data.vocab import Vocab
from headgates.gates import heads_left, load_pruned
from headgates.models.attention import MultiHeadAttention
from headgates.models.checkpoint import special_tokens
from headgates.models.positions import sinusoids
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator

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
            f"no translation model of Hugging Face is built so: it would need {wrong[0]}; export to torch or onnx instead"
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
            f"the tokenizer in {source.path.parent} is none that Hugging Face's library has a class for; export to torch, onnx or ct2"
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


def open(folder: Path, threads: int = 0) -> "FolderTranslator":
    """The translator of such a folder, which runs the model's class in transformers, every step from the
    first position on.

    threads: of torch, and so of the whole process; 0 leaves them. Raises ValueError at a file that is missing
    or broken."""
    about = read_about(folder)
    if threads:
        torch.set_num_threads(threads)
    settings = read_settings(folder / "config.json")
    family = FAMILIES.get(settings.get("model_type", ""))
    if family is None:
        raise ValueError(f"{folder / 'config.json'} is of another version; export the run again")
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    try:
        with quiet():
            if "headgates" in settings:
                theirs = load_pruned(folder, **options)
            else:
                theirs = getattr(library(), family.model).from_pretrained(
                    str(folder), local_files_only=True, **options
                )
        source, target = special_tokens(about["architecture"])
        model = FolderModel(theirs.eval(), about["architecture"], source, target)
        search = read_search(about["search"], folder)
    except Exception as error:  # broken files send the library anywhere
        raise ValueError(
            f"{folder} is not a whole Hugging Face model ({' '.join(str(error).split())[:200]}); export again"
        ) from error
    vocabs = load_vocabs(folder, read_settings(folder / ABOUT), source, target)
    return FolderTranslator(model, *vocabs, search)  # type: ignore[arg-type]


class FolderState:
    """What search remembers: the sources' memory, and the tokens of every row so far."""

    def __init__(self, memory: Tensor, mask: Tensor, beam: int):
        self.memory, self.mask = memory, mask  # (B, S, D), (B, S)
        self.sentences = torch.arange(len(memory))
        self.row_sentences = self.sentences.repeat_interleave(beam)  # (N,)
        self.ids = torch.empty(len(self.row_sentences), 0, dtype=torch.long)  # (N, length)

    @property
    def length(self) -> int:
        return self.ids.shape[1]

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        self.ids, self.row_sentences = self.ids[rows], self.row_sentences[rows]
        if sentences is not None:
            self.sentences = self.sentences[sentences]


class FolderModel(nn.Module):
    """A model of transformers as models/search.py wants it."""

    def __init__(
        self, theirs: nn.Module, description: dict[str, Any], source: SpecialTokens, target: SpecialTokens
    ):
        super().__init__()
        self.theirs, self.config = theirs, ModelConfig(**description["model"])
        self.source_vocab, self.target_vocab = description["source_vocab"], description["target_vocab"]
        self.source_specials, self.target_specials = source, target
        self.eval()

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Logits (B, T, V) of whole target inputs (B, T)."""
        state = self.start(source)
        return self.logits(state.memory, state.mask, target_in)

    def logits(self, memory: Tensor, mask: Tensor, target_in: Tensor) -> Tensor:
        outputs = library("transformers.modeling_outputs").BaseModelOutput(last_hidden_state=memory)
        # FSMT lets a position see later ones unless it is given sources, whatever they are
        sources = {"input_ids": mask, "encoder_outputs": outputs, "attention_mask": mask}
        found = self.theirs(**sources, decoder_input_ids=target_in, use_cache=False)
        return found.logits[..., : self.target_vocab]

    def start(self, source: Tensor, beam: int = 1) -> FolderState:
        mask = (source != self.source_specials.padding).long()
        encoder: Any = self.theirs.get_encoder()  # type: ignore[operator]
        return FolderState(encoder(input_ids=source, attention_mask=mask).last_hidden_state, mask, beam)

    def step(self, ids: Tensor, state: FolderState) -> Tensor:
        """Logits (N, V) after the last token ids (N,) of every row."""
        state.ids = torch.cat([state.ids, ids[:, None]], dim=1)
        rows = state.row_sentences
        return self.logits(state.memory[rows], state.mask[rows], state.ids)[:, -1]


class FolderTranslator(Translator):
    """`Translator` over a model of transformers: the same batches, the same search."""

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

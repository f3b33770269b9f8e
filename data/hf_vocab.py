"""Tokenizers of Hugging Face's translation models, run by their own library: a tokenizer's files lie in a run
folder as vocab.hf.*, and vocab.json says what they were called, which class reads them, and which tokens of
language, beginning and end stand around a line.

A language stands before a source (mBART-50, M2M100, NLLB) or after its end (mBART-25); it begins every target
as a forced piece, or is what the decoder reads first (mBART-25). Marian's models of several target languages
read the target's, >>fra<<, before the source: the one that a line begins with, or else that of tgt=. Anything
else between >> and << is text. T5's models read their task in words, "translate English to German: ", or
MADLAD-400's the target's language, <2de>: the pieces of that text are put before those of every source.
"""

import importlib
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import shortened
from headgates.configs.json_file import load_json
from headgates.configs.own_file import own_file
from headgates.configs.source import ForeignOptions
from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import DataError, reworded
from headgates.data.vocab import VOCAB_ABOUT, seen, spelt

KIND = "huggingface"
SIDES = ("source", "target")
LANGUAGE_OPTIONS = {"source": "src_lang", "target": "tgt_lang"}  # our option and theirs, of a side
PREFIX = "vocab.hf."  # of a tokenizer's file in a run folder, before its own name
TOKENIZERS = (
    "MarianTokenizer",
    "BartTokenizer",
    "RobertaTokenizer",
    "MBartTokenizer",
    "MBart50Tokenizer",
    "M2M100Tokenizer",
    "NllbTokenizer",
    "PegasusTokenizer",
    "FSMTTokenizer",
    "T5Tokenizer",
    "ByT5Tokenizer",
    "TokenizersBackend",  # of a UMT5
)
# their source says in text what to write
PREFIXED = ("T5Tokenizer", "ByT5Tokenizer", "TokenizersBackend")
_TO_LANGUAGE = re.compile(r"▁?<2([\w-]+)>")  # MADLAD-400's
_TASK = re.compile(r"translation_(\w+)_to_(\w+)")  # of task_specific_params in config.json


def library(name: str = "transformers") -> Any:
    """A package of the extra `hf`. Raises DataError, naming the extra, where it or what it needs is
    missing."""
    what = "models of Hugging Face need transformers, tokenizers, safetensors, sentencepiece and sacremoses"
    with reworded(what, "python -m pip install '.[hf]' in this checkout", ImportError), quiet():
        return importlib.import_module(name)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's warnings and progress bars, which are for its own users."""
    logging = importlib.import_module("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def hub_folder(name: str, patterns: Sequence[str]) -> Path:
    """The folder in which the Hub's client keeps the files of a model. Raises ValueError where there are
    none."""
    hub = library("huggingface_hub")
    what = f"{name} is neither a folder here nor a model that the Hugging Face Hub gives"
    with reworded(what, "is the name right, as in Helsinki-NLP/opus-mt-en-de?"), quiet():
        return Path(hub.snapshot_download(name, allow_patterns=patterns))


def load(
    folder: Path, about: Mapping[str, Any], *specials: SpecialTokens | None
) -> "tuple[HuggingFaceVocab, HuggingFaceVocab]":
    """The two vocabularies of a folder whose vocab.json is `about`. The files get their own names in a folder
    that is gone afterwards.

    Raises DataError where a file is missing or broken."""
    with tempfile.TemporaryDirectory() as restored:
        for name, own in about["files"].items():
            path = own_file(folder, name)
            if not path.is_file():
                raise DataError(f"{path} of the tokenizer is missing; bring it back, or make the run again")
            shutil.copyfile(path, own_file(restored, own))
        tokenizer = read_tokenizer(Path(restored), about["class"])
    source, target = (
        HuggingFaceVocab(
            tokenizer,
            folder / VOCAB_ABOUT,
            side,
            about[side],
            given or SpecialTokens(**about[side]["specials"]),
        )
        for side, given in zip(SIDES, specials, strict=True)
    )
    return source, target


def read_tokenizer(folder: Path, name: str | None = None) -> Any:
    """The tokenizer of a folder as Hugging Face's models have them. name: its class in transformers, unless
    its files say.

    Raises DataError if it is none of TOKENIZERS, or its files are missing or broken."""
    transformers = library()
    if name is not None and name not in TOKENIZERS:
        raise DataError(
            f"expected a tokenizer of one of these classes: {', '.join(TOKENIZERS)}; got {shortened(name)}"
        )
    check_tokens(folder)
    reader = getattr(transformers, name or "AutoTokenizer")
    with reworded("the tokenizer's files cannot be read", "copy the model's folder again"), quiet():
        tokenizer = reader.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    found = kind(tokenizer)
    if found == "MarianTokenizer":  # its own takes any text between >> and << off, and loses it
        tokenizer.remove_language_code = partial(own_language, tokenizer)
    return tokenizer if found in TOKENIZERS else read_tokenizer(folder, found)


def check_tokens(folder: Path) -> None:
    """Raises DataError where special_tokens_map.json names anything but special tokens: the library takes a
    path there for that of a file, wherever it lies."""
    path = folder / "special_tokens_map.json"
    if path.is_file():
        for name in load_json(path, dict, cure="copy the model's folder again"):
            if not name.endswith(("_token", "_tokens")):
                raise DataError(f"{path}: {shortened(name)} is no special token; take it out")


def kind(tokenizer: Any) -> str:
    return type(tokenizer).__name__


def piece_ids(tokenizer: Any, side: str) -> dict[str, int]:
    """The id of every piece that a tokenizer has on a side."""
    two = kind(tokenizer) == "MarianTokenizer" and tokenizer.separate_vocabs
    if two or kind(tokenizer) == "FSMTTokenizer":  # their get_vocab is the source's
        if side == "source":
            return dict(tokenizer.encoder)
        return {piece: i for i, piece in tokenizer.decoder.items()}
    return {**tokenizer.get_vocab(), **getattr(tokenizer, "lang_token_to_id", {})}


def languages(tokenizer: Any) -> dict[str, int]:
    """The ids of the languages that a tokenizer has tokens for, by the names that its own library gives
    them."""
    if kind(tokenizer) == "MarianTokenizer":
        found = tokenizer.encoder.items()
        return {code[2:-2]: i for code, i in found if code[:2] == ">>" and code[-2:] == "<<"}  # >>fra<<
    if kind(tokenizer) in PREFIXED:
        found = tokenizer.get_vocab().items()
        return {code[1]: i for each, i in found if (code := _TO_LANGUAGE.fullmatch(each))}
    if kind(tokenizer) == "NllbTokenizer":
        codes = map(str, tokenizer.extra_special_tokens)
        return {code: tokenizer.convert_tokens_to_ids(code) for code in codes}
    return dict(getattr(tokenizer, "lang_code_to_id", {}))


def own_language(tokenizer: Any, text: str) -> tuple[list[str], str]:
    """The language token of the vocabulary of Marian's that a source line begins with, if any, and the
    rest."""
    code = text[: text.find("<<") + 2]
    source = tokenizer.current_spm is tokenizer.spm_source
    if source and code[:2] == ">>" and code in tokenizer.encoder:
        return [code], text[len(code) :]
    return [], text


def argument(tokenizer: Any, side: str) -> str:
    """By what name a tokenizer takes the text of a side; those that cut both alike may ask for a language
    under another."""
    return "text_target" if side == "target" and kind(tokenizer) == "MarianTokenizer" else "text"


def body(tokenizer: Any, side: str, lines: Sequence[str]) -> list[list[int]]:
    """The ids of each line's own pieces."""
    if not lines:
        return []
    if kind(tokenizer) == "FSMTTokenizer" and side == "target":  # it has no way to cut targets but this one
        ids, unknown, source = piece_ids(tokenizer, side), tokenizer.unk_token, tokenizer.src_lang
        tokenizer.src_lang = tokenizer.tgt_lang  # the language that it cuts for
        try:
            return [[ids.get(piece, ids[unknown]) for piece in tokenizer._tokenize(line)] for line in lines]
        finally:
            tokenizer.src_lang = source
    found = tokenizer(
        **{argument(tokenizer, side): list(lines)},
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        verbose=False,
    )
    return [list(map(int, ids)) for ids in found["input_ids"]]


def vocabulary(folder: Path, model: Any, sizes: Sequence[int], options: ForeignOptions) -> dict[str, Any]:
    """What vocab.json says of the tokenizer, but for its files: the tokens around a line of each side, and
    the special ones' ids.

    Raises ValueError where it does not fit the model, or languages are not given, not known, or not asked
    for."""
    tokenizer = read_tokenizer(folder)
    if kind(tokenizer) == "TokenizersBackend" and model.config.model_type != "umt5":
        raise DataError(
            f"the tokenizer in {folder} is of no class of its own; expected one of "
            f"{', '.join(TOKENIZERS[:-1])}"
        )
    for side, size in zip(SIDES, sizes, strict=True):
        check_pieces(tokenizer, side, size, folder)
    name = kind(tokenizer)
    task = task_prefix(tokenizer, model.config, options)
    language = {} if name in PREFIXED else chosen_languages(tokenizer, options)
    padding, end, start = (
        given(model, each) for each in ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    )
    first = model.generation_config.forced_bos_token_id
    forced = [] if first is None else [first]
    prefix = []  # the language to write, in a source of Marian's
    if language:
        code = languages(tokenizer)[language["target"]]
        if name == "MarianTokenizer":
            prefix = [code]
        else:
            tokenizer.src_lang, tokenizer.tgt_lang = language["source"], language["target"]
            # mBART-25 reads the language first, as what the decoder starts with
            start, forced = (code, []) if name == "MBartTokenizer" else (start, [code])
    before, after = template(tokenizer, "source")
    before = prefix + before
    in_words = pieces_of_prefix(tokenizer, task)
    if not after:
        raise ValueError(
            f"the tokenizer in {folder} puts no token after a line; the model's sources need an end"
        )
    *suffix, source_end = after
    unknown = tokenizer.unk_token_id
    first = next((i for i in (*before, *suffix) if i not in (source_end, padding)), padding)
    own = [] if name in ("MBartTokenizer", "FSMTTokenizer") else template(tokenizer, "target")[0]
    sides: dict[str, dict[str, Any]] = {
        "source": {
            "prefix": in_words + before,
            "suffix": suffix,
            "specials": {"padding": padding, "beginning": first, "end": source_end, "unknown": unknown},
        },
        "target": {
            "prefix": forced or own,
            "suffix": [],
            "specials": {
                "padding": padding,
                "beginning": start,
                "end": end,
                "unknown": piece_ids(tokenizer, "target").get(tokenizer.unk_token, unknown),
                "forced": forced,
            },
        },
    }
    for (side, about), size in zip(sides.items(), sizes, strict=True):
        about["size"], specials = size, about["specials"]
        used = [*about["prefix"], *about["suffix"]]
        used += [specials[each] for each in ("padding", "beginning", "end")]
        if strange := [i for i in used if not 0 <= i < size]:
            raise ValueError(
                f"the tokenizer in {folder} puts the token {strange[0]} around a {side} line, and the "
                f"model embeds {size}: they belong to different models"
            )
    return {"kind": KIND, "class": name, "languages": language, **sides}


def check_pieces(tokenizer: Any, side: str, size: int, folder: Path) -> None:
    """Raises ValueError where the pieces of a side are not numbered from 0 to at most `size`."""
    ids = piece_ids(tokenizer, side)
    if strange := [piece for piece, i in ids.items() if type(i) is not int or i < 0]:
        raise ValueError(
            f"the tokenizer in {folder} gives {shortened(strange[0])} the id "
            f"{shortened(ids[strange[0]])}, expected 0 or more: copy it again"
        )
    if {piece for piece, i in ids.items() if i >= size} - set(tokenizer.all_special_tokens):
        raise ValueError(
            f"the tokenizer in {folder} has {len(ids)} {side} pieces, up to the id {max(ids.values())}, "
            f"the model embeds {size}: they belong to different models"
        )


def template(tokenizer: Any, side: str) -> tuple[list[int], list[int]]:
    """The ids that a tokenizer puts before and after a line."""
    own = body(tokenizer, side, ["a"])[0]
    target = side == "target" and kind(tokenizer) != "FSMTTokenizer"
    whole = list(tokenizer(**{"text_target" if target else "text": "a"})["input_ids"])
    at = next((i for i in range(len(whole)) if whole[i : i + len(own)] == own), 0)
    return whole[:at], whole[at + len(own) :]


def chosen_languages(tokenizer: Any, options: ForeignOptions) -> dict[str, str]:
    """The language of each side, for a model of several. Raises ValueError at one that it does not know, or
    that is missing."""
    known = languages(tokenizer)
    names = shortened(", ".join(sorted(known)))
    in_text = kind(tokenizer) == "MarianTokenizer"
    of_source = in_text or kind(tokenizer) in PREFIXED
    needed = () if not known else SIDES[1:] if of_source else SIDES
    found = {}
    for side, option in LANGUAGE_OPTIONS.items():
        flag, code = option.removesuffix("_lang"), getattr(options, option)
        if code is None and side in needed:
            several = f"this model has several languages: give hf:NAME,{flag}=LANGUAGE, one of {names}"
            if not in_text:
                raise ValueError(several)
            example = min(known)
            warnings.warn(f"{several}; or begin every line with its own, such as >>{example}<<", stacklevel=2)
        if code is not None and side not in needed:
            raise ValueError(
                f"{flag}={code}: this model's tokenizer has no token for a {side} language; leave it out"
            )
        if code is not None and code not in known:
            raise ValueError(f"{flag}={code}{did_you_mean(code, known)}: expected one of {names}")
        if code is not None:
            found[side] = code
    return found


def task_prefix(tokenizer: Any, config: Any, options: ForeignOptions) -> str:
    """The text before every source line, "" for none: prefix=, or that of the languages in the words of
    MADLAD-400 or of T5's config.json. Raises ValueError at a prefix for a tokenizer of another kind, at
    languages without one, or where MADLAD's is missing."""
    pair = options.src_lang, options.tgt_lang
    if options.prefix is not None:
        if kind(tokenizer) not in PREFIXED or any(pair):
            what = "src= and tgt= say it too" if any(pair) else f"a {kind(tokenizer)} has languages for it"
            raise ValueError(f"prefix={options.prefix}: {what}; leave one of them out")
        return options.prefix
    if kind(tokenizer) not in PREFIXED:
        return ""
    if languages(tokenizer):
        return f"<2{chosen_languages(tokenizer, options)['target']}>"
    params = getattr(config, "task_specific_params", None)
    tasks = {
        found.groups(): str(task["prefix"])
        for name, task in (params if isinstance(params, dict) else {}).items()
        if (found := _TASK.fullmatch(name)) and isinstance(task, dict) and task.get("prefix")
    }
    if pair in tasks:
        return tasks[pair]
    names = ", ".join(f"src={source},tgt={target}" for source, target in tasks)
    if any(pair):
        raise ValueError(
            f"{' and '.join(each for each in pair if each)}: config.json has no words for these languages"
            f"{f', it has {shortened(names)}' if names else ''}; give them as text, such as "
            "prefix=translate English to German:"
        )
    if tasks:
        warnings.warn(
            f"this model learned tasks by a text before each line, and none is put there: give one of "
            f"{shortened(names)}, or prefix=TEXT",
            stacklevel=2,
        )
    return ""


def pieces_of_prefix(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text before a line, from which a space parts it. Raises ValueError where they depend on
    the line."""
    if not text.strip():
        return []
    line = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    whole = list(tokenizer(f"{text.rstrip()} a", add_special_tokens=False)["input_ids"])
    if whole[-len(line) :] != line:
        raise ValueError(f"prefix={text}: the tokenizer does not part it from the line after it")
    return whole[: -len(line)]


def given(model: Any, name: str) -> int:
    """The id of a special token, from generation_config or config. Raises ValueError where there is none, or
    more than one."""
    found = getattr(model.generation_config, name, None)
    found = getattr(model.config, name, None) if found is None else found
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    if not isinstance(found, int):
        raise ValueError(f"{name} in config.json is {shortened(found)}; expected the id of one token")
    return found


class HuggingFaceVocab:
    """One side of a tokenizer: the `Vocabulary` of data/vocab.py.

    about: "size", rows of the model's embedding; "prefix" and "suffix", ids before and after the pieces of
    every line that is not empty (after the suffix stands the end)."""

    def __init__(
        self, tokenizer: Any, path: Path, side: str, about: Mapping[str, Any], specials: SpecialTokens
    ) -> None:
        self.tokenizer, self.path, self.side, self.specials = tokenizer, path, side, specials
        self.size, self.prefix, self.suffix = int(about["size"]), list(about["prefix"]), list(about["suffix"])
        ids = piece_ids(tokenizer, side)
        self.names = {i: piece for piece, i in ids.items() if i < self.size}
        theirs, own = set(tokenizer.all_special_ids), {specials.padding, specials.end}
        self.special = theirs | own  # what the pieces of a text never are
        outside = {specials.beginning, *specials.forced, *self.suffix}
        codes = set(languages(tokenizer).values())
        self.own_languages = codes if kind(tokenizer) == "MarianTokenizer" else set[int]()
        outside |= own | (theirs - {specials.unknown}) | codes
        self.text = self.names.keys() - outside

    def __len__(self) -> int:
        return self.size

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """As in `Vocabulary`; the name of a special token in a text is an unknown piece, or would end or pad
        the sentence."""
        unknown = self.specials.unknown
        return [
            [
                *self.before(ids),
                *(unknown if i in self.special or i >= self.size else i for i in ids),
                *self.suffix,
            ]
            if ids
            else []
            for ids in body(self.tokenizer, self.side, lines)
        ]

    def before(self, ids: Sequence[int]) -> list[int]:
        """What stands before a line of these pieces: its own language goes before that of the prefix."""
        return [i for i in self.prefix if not {i, ids[0]} <= self.own_languages]

    def decode(self, ids_list: Sequence[Sequence[int]]) -> list[str]:
        """As in `Vocabulary`; the prefix, language tokens and the library's other special tokens are left
        out, as are ids that no piece has."""
        bodies = [ids[len(self.prefix) :] if self.begins(ids) else ids for ids in map(list, ids_list)]
        kept = [[int(i) for i in ids if int(i) in self.text] for ids in bodies]
        with quiet():
            if self.side == "target":
                return [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in kept]
            return [self.tokenizer.convert_tokens_to_string(self.pieces(ids)) for ids in kept]

    def begins(self, ids: Sequence[int]) -> bool:
        """Whether the prefix is there."""
        return list(ids[: len(self.prefix)]) == self.prefix

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """As in `Vocabulary`; a row of the embedding that no piece has is <unused N>."""
        return [self.names.get(int(i), f"<unused {int(i)}>") for i in ids]

    def characters(self, text: str) -> list[list[int]]:
        """As in `Vocabulary`. Raises DataError for the tokenizer of FSMT, which rewrites the text before it
        cuts it."""
        ids = body(self.tokenizer, self.side, [text])[0]
        found = self.own_characters(text)
        if len(found) != len(ids):
            raise DataError(
                f"the tokenizer in {self.path.parent} cannot say which characters its pieces of "
                f"{shortened(text)} stand for"
            )
        return [*([] for _ in self.before(ids)), *found, *([] for _ in self.suffix)] if ids else []

    def own_characters(self, text: str) -> list[list[int]]:
        """The characters of each of the line's own pieces."""
        tokenizer = self.tokenizer
        if tokenizer.is_fast:
            found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            return [seen(text, begin, end) for begin, end in found["offset_mapping"]]
        if kind(tokenizer) == "MarianTokenizer":
            code, rest = tokenizer.remove_language_code(text) if self.side == "source" else ([], text)
            shift = len(text) - len(rest)
            processor = tokenizer.spm_source if self.side == "source" else tokenizer.spm_target
            own = [[i + shift for i in each] for each in spelt(processor, rest)]
            return [[*range(shift)] for _ in code] + own
        if kind(tokenizer) == "ByT5Tokenizer":  # a piece for each byte
            return [seen(text, i, i + 1) for i, letter in enumerate(text) for _ in letter.encode()]
        if kind(tokenizer) == "M2M100Tokenizer":
            return spelt(tokenizer.sp_model, text)
        return []

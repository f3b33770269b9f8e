"""Tokenizers of Hugging Face's translation models, run by their own library: a tokenizer's files lie in a run
folder as vocab.hf.*, and vocab.json says what they were called, which class reads them, and which tokens of
language, beginning and end
stand around a line.

A language stands before a source (mBART-50, M2M100, NLLB) or after its end (mBART-25); it begins every target
as a forced piece, or is what the decoder reads first (mBART-25). Marian's models of several target languages
read the target's, >>fra<<, before the source."""

from __future__ import annotations

import importlib
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import shortened
from headgates.configs.source import ForeignOptions
from headgates.data.parallel import DataError
from headgates.data.special_tokens import SpecialTokens
from headgates.data.vocab import ABOUT, spelt

KIND = "huggingface"
SIDES = ("source", "target")
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
)


def library(name: str = "transformers") -> Any:
    """A package of the extra `hf`. Raises DataError, naming the extra, where it or what it needs is
    missing."""
    try:
        with quiet():
            return importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            "models of Hugging Face need transformers, tokenizers, safetensors, sentencepiece and "
            "sacremoses "
            f"({' '.join(str(error).split())}): python -m pip install '.[hf]' in this checkout"
        ) from error


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


def load(
    folder: Path, about: Mapping[str, Any], source: SpecialTokens | None, target: SpecialTokens | None
) -> tuple[HuggingFaceVocab, HuggingFaceVocab]:
    """The two vocabularies of a folder whose vocab.json is `about`. The files get their own names in a folder
    that is gone afterwards.

    Raises DataError where a file is missing or broken, or the description lacks something."""
    try:
        specials = (
            source or SpecialTokens(**about["source"]["specials"]),
            target or SpecialTokens(**about["target"]["specials"]),
        )
        files = {str(name): str(own) for name, own in about["files"].items()}
        with tempfile.TemporaryDirectory() as restored:
            for name, own in files.items():
                if Path(name).name != name or Path(own).name != own:
                    raise DataError(
                        f"{folder / ABOUT} names the file {shortened(name)} or {shortened(own)}, which is "
                        "none of this folder"
                    )
                if not (folder / name).is_file():
                    raise DataError(
                        f"{folder / name} is missing, a file of the tokenizer; bring it back, or make the "
                        "run again"
                    )
                shutil.copyfile(folder / name, Path(restored) / own)
            tokenizer = read_tokenizer(Path(restored), about["class"])
        sides = [
            HuggingFaceVocab(tokenizer, folder / ABOUT, side, about[side], own)
            for side, own in zip(SIDES, specials, strict=True)
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder / ABOUT} lacks something of a {KIND} vocabulary ({error}); make the run again from "
            "its source"
        ) from error
    return sides[0], sides[1]


def read_tokenizer(folder: Path, name: str | None = None) -> Any:
    """The tokenizer of a folder as Hugging Face's models have them. name: its class in transformers, unless
    its files say.

    Raises DataError if it is none of TOKENIZERS, or its files are missing or broken."""
    transformers = library()
    if name is not None and name not in TOKENIZERS:
        raise DataError(
            f"expected a tokenizer of one of these classes: {', '.join(TOKENIZERS)}; got {shortened(name)}"
        )
    reader = getattr(transformers, name) if name else transformers.AutoTokenizer
    try:
        with quiet():
            tokenizer = reader.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # broken files send the library anywhere
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(
            f"the tokenizer's files cannot be read ({reason}); copy the model's folder again"
        ) from error
    if type(tokenizer).__name__ not in TOKENIZERS:
        return read_tokenizer(folder, type(tokenizer).__name__)
    return tokenizer


def piece_ids(tokenizer: Any, side: str) -> dict[str, int]:
    """The id of every piece that a tokenizer has on a side."""
    kind = type(tokenizer).__name__
    if kind == "FSMTTokenizer" or (
        kind == "MarianTokenizer" and tokenizer.separate_vocabs
    ):  # their get_vocab is the source's
        return (
            dict(tokenizer.encoder)
            if side == "source"
            else {piece: i for i, piece in tokenizer.decoder.items()}
        )
    return {**tokenizer.get_vocab(), **getattr(tokenizer, "lang_token_to_id", {})}


def languages(tokenizer: Any) -> dict[str, int]:
    """The ids of the languages that a tokenizer has tokens for, by the names that its own library gives
    them."""
    kind = type(tokenizer).__name__
    if kind == "MarianTokenizer":
        return {code[2:-2]: tokenizer.encoder[code] for code in tokenizer.supported_language_codes}  # >>fra<<
    if kind == "NllbTokenizer":
        return {
            str(code): tokenizer.convert_tokens_to_ids(str(code)) for code in tokenizer.extra_special_tokens
        }
    return dict(getattr(tokenizer, "lang_code_to_id", {}))


def body(tokenizer: Any, side: str, lines: Sequence[str]) -> list[list[int]]:
    """The ids of each line's own pieces."""
    lines = list(lines)
    if not lines:
        return []
    if (
        type(tokenizer).__name__ == "FSMTTokenizer" and side == "target"
    ):  # it has no way to cut targets but this one
        ids, unknown, source = piece_ids(tokenizer, side), tokenizer.unk_token, tokenizer.src_lang
        tokenizer.src_lang = tokenizer.tgt_lang  # the language that it cuts for
        try:
            return [[ids.get(piece, ids[unknown]) for piece in tokenizer._tokenize(line)] for line in lines]
        finally:
            tokenizer.src_lang = source
    # the others cut both sides alike, and may ask for a language here
    text = (
        {"text_target": lines}
        if type(tokenizer).__name__ == "MarianTokenizer" and side == "target"
        else {"text": lines}
    )
    options = {
        "add_special_tokens": False,
        "split_special_tokens": True,
        "return_attention_mask": False,
        "verbose": False,
    }
    return [list(map(int, ids)) for ids in tokenizer(**text, **options)["input_ids"]]


def vocabulary(folder: Path, model: Any, sizes: list[int], options: ForeignOptions) -> dict[str, Any]:
    """What vocab.json says of the tokenizer, but for its files: the tokens around a line of each side, and
    the special ones' ids.

    Raises ValueError where it does not fit the model, or languages are not given, not known, or not asked
    for."""
    tokenizer = read_tokenizer(folder)
    kind, config = type(tokenizer).__name__, model.generation_config
    for side, size in zip(SIDES, sizes, strict=True):
        ids = piece_ids(tokenizer, side)
        if strange := [
            piece for piece, i in ids.items() if not isinstance(i, int) or isinstance(i, bool) or i < 0
        ]:
            raise ValueError(
                f"the tokenizer in {folder} gives {shortened(strange[0])} the id "
                f"{shortened(ids[strange[0]])}, expected 0 or more: "
                "copy it again"
            )
        beyond = [
            piece for piece, i in ids.items() if i >= size and piece not in tokenizer.all_special_tokens
        ]
        if beyond:
            raise ValueError(
                f"the tokenizer in {folder} has {len(ids)} {side} pieces, up to the id "
                f"{max(ids.values())}, the model embeds {size}: "
                "they belong to different models"
            )
    language = chosen_languages(tokenizer, options)
    marian = kind == "MarianTokenizer"
    if language and not marian:
        tokenizer.src_lang, tokenizer.tgt_lang = language["source"], language["target"]
    before, after = template(tokenizer, "source")
    if marian and language:
        before = [languages(tokenizer)[language["target"]], *before]
    if not after:
        raise ValueError(
            f"the tokenizer in {folder} puts no token after a line; the model's sources need an end"
        )
    *suffix, source_end = after
    padding, end, start = (
        given(model, name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    )
    unknown = tokenizer.unk_token_id
    first = next((i for i in (*before, *suffix) if i not in (source_end, padding)), padding)
    source = {"padding": padding, "beginning": first, "end": source_end, "unknown": unknown}
    target_before, _ = template(tokenizer, "target")
    forced = [] if config.forced_bos_token_id is None else [config.forced_bos_token_id]
    if language and not marian:
        code = languages(tokenizer)[language["target"]]
        if kind == "MBartTokenizer":  # mBART-25 reads the language first, as what the decoder starts with
            start, forced = code, []
        else:
            forced = [code]
    known = piece_ids(tokenizer, "target")
    target = {"padding": padding, "beginning": start, "end": end, "forced": forced}
    target["unknown"] = known.get(tokenizer.unk_token, unknown)
    prefix = forced or ([] if kind in ("MBartTokenizer", "FSMTTokenizer") else target_before)
    about: dict[str, Any] = {"kind": KIND, "class": kind, "languages": language}
    about["source"] = {"size": sizes[0], "prefix": before, "suffix": suffix, "specials": source}
    about["target"] = {"size": sizes[1], "prefix": prefix, "suffix": [], "specials": target}
    for side in SIDES:
        specials, size = about[side]["specials"], about[side]["size"]
        used = [
            *about[side]["prefix"],
            *about[side]["suffix"],
            *(specials[name] for name in ("padding", "beginning", "end")),
        ]
        if strange := [i for i in used if not 0 <= i < size]:
            raise ValueError(
                f"the tokenizer in {folder} puts the token {strange[0]} around a {side} line, and the "
                f"model embeds {size}: "
                "they belong to different models"
            )
    return about


def template(tokenizer: Any, side: str) -> tuple[list[int], list[int]]:
    """The ids that a tokenizer puts before and after a line."""
    line = "a"
    text = (
        {"text_target": line}
        if side == "target" and type(tokenizer).__name__ != "FSMTTokenizer"
        else {"text": line}
    )
    own, whole = body(tokenizer, side, [line])[0], list(tokenizer(**text)["input_ids"])
    at = next((i for i in range(len(whole)) if whole[i : i + len(own)] == own), 0)
    return whole[:at], whole[at + len(own) :]


def chosen_languages(tokenizer: Any, options: ForeignOptions) -> dict[str, str]:
    """The language of each side, for a model of several. Raises ValueError at one that it does not know, or
    that is missing."""
    known = languages(tokenizer)
    given = {"source": options.src_lang, "target": options.tgt_lang}
    marian = type(tokenizer).__name__ == "MarianTokenizer"
    needed = ("target",) if marian else SIDES if known else ()
    for side in SIDES:
        flag, code = {"source": "src", "target": "tgt"}[side], given[side]
        if code is None and side in needed and known:
            raise ValueError(
                f"this model has several languages: give hf:NAME,{flag}=LANGUAGE, one of "
                f"{shortened(', '.join(sorted(known)))}"
            )
        if code is not None and (side not in needed or not known):
            raise ValueError(
                f"{flag}={code}: this model's tokenizer has no token for a {side} language; leave it out"
            )
        if code is not None and code not in known:
            raise ValueError(
                f"{flag}={code}{did_you_mean(code, known)}: expected one of "
                f"{shortened(', '.join(sorted(known)))}"
            )
    return {side: code for side, code in given.items() if code is not None}


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
        special = {
            specials.padding,
            specials.beginning,
            specials.end,
            *specials.forced,
            *self.prefix,
            *self.suffix,
        }
        self.no_text = (
            special
            | {i for i in tokenizer.all_special_ids if i != specials.unknown}
            | set(languages(tokenizer).values())
        )

    def __len__(self) -> int:
        return self.size

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """As in `Vocabulary`; the name of a special token in a text is an unknown piece, or would end or pad
        the sentence."""
        unknown, special = (
            self.specials.unknown,
            set(self.tokenizer.all_special_ids) | {self.specials.padding, self.specials.end},
        )
        return [
            [*self.prefix, *(unknown if i in special or i >= self.size else i for i in ids), *self.suffix]
            if ids
            else []
            for ids in body(self.tokenizer, self.side, lines)
        ]

    def decode(self, ids_list: Sequence[Sequence[int]]) -> list[str]:
        """As in `Vocabulary`; language tokens and the library's other special tokens are left out, as are ids
        that no piece has."""
        kept = [
            [int(i) for i in ids if int(i) in self.names and int(i) not in self.no_text] for ids in ids_list
        ]
        with quiet():
            if self.side == "target":
                return [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in kept]
            return [self.tokenizer.convert_tokens_to_string(self.pieces(ids)) for ids in kept]

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
        return [*([] for _ in self.prefix), *found, *([] for _ in self.suffix)] if ids else []

    def own_characters(self, text: str) -> list[list[int]]:
        """The characters of each of the line's own pieces."""
        kind = type(self.tokenizer).__name__
        if self.tokenizer.is_fast:
            options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
            return [
                seen(text, begin, end) for begin, end in self.tokenizer(text, **options)["offset_mapping"]
            ]
        if kind == "MarianTokenizer":
            code, rest = self.tokenizer.remove_language_code(text)
            shift = len(text) - len(rest)
            processor = self.tokenizer.spm_source if self.side == "source" else self.tokenizer.spm_target
            return [
                *([*range(shift)] for _ in code),
                *([i + shift for i in own] for own in spelt(processor, rest, self.path)),
            ]
        if kind == "M2M100Tokenizer":
            return spelt(self.tokenizer.sp_model, text, self.path)
        return []


def seen(text: str, begin: int, end: int) -> list[int]:
    """The numbers of the characters from begin to end without white space; of white space alone, that of the
    character after it."""
    own = [i for i in range(begin, end) if not text[i].isspace()]
    return own or [i for i in range(begin, len(text)) if not text[i].isspace()][:1]

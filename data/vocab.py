"""Subword vocabularies: byte-pair encoding over characters, by SentencePiece (Sennrich et al. 2016,
arXiv:1508.07909; Kudo and Richardson 2018, arXiv:1808.06226). Other tokenizers serve as well: `Vocabulary`
says what is asked of one.

Text is normalised by SentencePiece's `nmt_nfkc` before it is cut: runs of spaces become one, compatibility
forms (ligatures, full-width letters, the one-character ellipsis) their plain form, control and zero-width
characters go. Everything else comes back from `decode` as it went in. Chinese and Japanese are cut as they
are, as their usual commas and brackets are such forms."""

import json
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import sentencepiece

from headgates.configs.fields import shortened
from headgates.configs.own_file import own_files
from headgates.configs.registry import imported
from headgates.data.atomic_file import atomic_file
from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import DataError, reworded

NORMALIZATION = "nmt_nfkc"
# languages whose punctuation that changes, and with it what a translation can say: these are cut as they are
FULL_WIDTH = ("zh", "zho", "cmn", "yue", "ja", "jpn")
# of a folder whose tokenizer is not SentencePiece by our own names: its kind, and what that kind needs
VOCAB_ABOUT = "vocab.json"
# kind -> "module:function": f(folder, about, source_specials, target_specials) -> (source, target), the same
# object twice where joint
VOCABULARIES: dict[str, str] = {
    "encoder": "headgates.data.encoder_vocab:load",
    "fairseq": "headgates.data.fairseq_vocab:load",
    "huggingface": "headgates.data.hf_vocab:load",
    "marian": "headgates.data.marian_vocab:load",
}


class Vocabulary(Protocol):
    """The methods that a model needs of a tokenizer. Ids are those of the model's embedding."""

    @property
    def path(self) -> Path:
        """The file that it was read from: a SentencePiece model, or vocab.json, with whose folder's other
        vocab* files it goes together."""

    @property
    def specials(self) -> SpecialTokens:
        """The ids of its special tokens."""

    def __len__(self) -> int: ...

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line without special tokens; an empty line gives an empty list."""

    def decode(self, ids_list: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each list of ids; padding, beginning and end are left out."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id as written in the vocabulary."""

    def characters(self, text: str) -> list[list[int]]:
        """For every id of `encode([text])[0]`, the numbers of the characters of the text that it stands for,
        white space left out; a space alone stands for the character after it. DataError where the tokenizer
        cannot say."""


def normalization_of(*languages: str) -> str:
    """How text of these languages, such as zh or zho_Hans, is normalised before it is cut."""
    codes = {re.split("[-_]", language.lower())[0] for language in languages}
    return NORMALIZATION if codes.isdisjoint(FULL_WIDTH) else "identity"


class Vocab:
    """A trained SentencePiece model, and how the ids of its special tokens are numbered."""

    def __init__(
        self, processor: sentencepiece.SentencePieceProcessor, path: Path, specials: SpecialTokens
    ) -> None:
        self.processor, self.path, self.specials = processor, path, specials

    @classmethod
    def train(
        cls, lines: Iterable[str], *, size: int, path: str | Path, normalization: str = NORMALIZATION
    ) -> "Vocab":
        """Train a vocabulary on `lines`, save it at `path` and return it. The same lines give the same file.

        `size` counts the four specials. If the text has too few different words for it, the vocabulary is
        smaller, with a warning. Raises DataError if there is no text, or if `size` is too small for the
        characters of the text."""
        path, specials = Path(path), SpecialTokens()
        kept = [line for line in lines if line.strip()]
        if not kept:
            raise DataError("no text to train a vocabulary on: expected at least one line that is not empty")
        path.parent.mkdir(parents=True, exist_ok=True)
        what = f"SentencePiece could not train a vocabulary of {size} pieces on this text"
        cure = "where it names required_chars, use at least the second number, better some thousands"
        with reworded(what, cure, RuntimeError), atomic_file(path) as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(kept),
                model_writer=file,
                model_type="bpe",
                vocab_size=size,
                hard_vocab_limit=False,  # a small text gives a smaller vocabulary, not an error
                character_coverage=1.0,
                normalization_rule_name=normalization,
                pad_id=specials.padding,
                bos_id=specials.beginning,
                eos_id=specials.end,
                unk_id=specials.unknown,
                num_threads=1,  # the model file differs with the number of threads
                minloglevel=2,
            )
        vocab = cls.load(path)
        if len(vocab) < size:
            warnings.warn(
                f"the text has room for {len(vocab)} pieces only, {size} were asked for; the vocabulary has "
                f"{len(vocab)}",
                stacklevel=2,
            )
        return vocab

    @classmethod
    def load(cls, path: str | Path, specials: SpecialTokens | None = None) -> "Vocab":
        """The vocabulary saved at `path`. Its special tokens are numbered as the file says, unless `specials`
        are given: those of the model that uses it. DataError where the file is missing, is no SentencePiece
        model, or lacks a special token and none are given."""
        path = Path(path)
        if not path.is_file():
            raise DataError(
                f"no vocabulary at {path}: expected a SentencePiece model; bring it back, or repeat "
                "with --fresh"
            )
        processor = sentencepiece.SentencePieceProcessor()
        with reworded(f"{path} is not a SentencePiece model", "train it again or copy it again"):
            processor.LoadFromSerializedProto(path.read_bytes())
        found = (processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id())
        if specials is None and min(found) < 0:
            raise DataError(
                f"{path} numbers pad, bos, eos, unk as {found}, -1 for none; train it with Vocab.train, or "
                "give the model's SpecialTokens"
            )
        return cls(processor, path, specials or SpecialTokens(*found))

    def __len__(self) -> int:
        return int(self.processor.get_piece_size())

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return self.processor.encode(list(lines), out_type=int)

    def decode(self, ids_list: Sequence[Sequence[int]]) -> list[str]:
        """As in `Vocabulary`; an unknown piece becomes SentencePiece's two question marks."""
        return self.processor.decode([list(map(int, ids)) for ids in ids_list])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """As in `Vocabulary`; a word's first piece starts with U+2581, and the specials are <pad>, <s>, </s>
        and <unk>."""
        return [self.processor.id_to_piece(int(i)) for i in ids]

    def characters(self, text: str) -> list[list[int]]:
        return spelt(self.processor, text)


def spelt(processor: sentencepiece.SentencePieceProcessor, text: str) -> list[list[int]]:
    """`Vocabulary.characters` of a SentencePiece model, which gives each piece's begin and end in the text.
    If one character became several pieces, such as its bytes, all but the last are empty spans before it;
    an empty span stands for the next character. Invisible characters, which normalisation drops, count as
    white space."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    return [seen(shown, *span) for span in processor.encode(text, out_type="offset_mapping")["offsets"]]


def seen(text: str, begin: int, end: int) -> list[int]:
    """The numbers of the characters from begin to end that are no white space; if there are none, that of the
    next one."""
    own = [i for i in range(begin, end) if not text[i].isspace()]
    return own or [i for i in range(begin, len(text)) if not text[i].isspace()][:1]


def load_vocabs(
    folder: Path, source_specials: SpecialTokens | None = None, target_specials: SpecialTokens | None = None
) -> tuple[Vocabulary, Vocabulary]:
    """Return the source and target vocabulary of a run folder or an exported folder; a joint one is the same
    object twice.

    The special tokens are numbered as given, which should be as the model numbers them, or else as the files
    do. Raises DataError where files are missing or broken."""
    own_files(folder, "vocab*")
    if (folder / VOCAB_ABOUT).is_file():
        about = read_about(folder / VOCAB_ABOUT)
        what = f"{folder / VOCAB_ABOUT} does not describe the vocabularies beside it"
        with reworded(what, "make the run again"):
            load = imported(VOCABULARIES[about["kind"]])
            both: tuple[Vocabulary, Vocabulary] = load(folder, about, source_specials, target_specials)
        return both
    if (folder / "vocab.model").is_file():
        return (Vocab.load(folder / "vocab.model", target_specials),) * 2
    source = Vocab.load(folder / "vocab.src.model", source_specials)
    return source, Vocab.load(folder / "vocab.tgt.model", target_specials)


def read_about(path: Path) -> dict[str, Any]:
    """The content of a vocab.json. Raises DataError unless it names a known kind."""
    with reworded(f"{path} is broken", "bring it back, or make the run again from its source"):
        about = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(about, dict) or str(about.get("kind")) not in VOCABULARIES:
        raise DataError(
            f"{path} describes {shortened(about)}; expected a vocabulary of a kind that this version knows: "
            f"{', '.join(VOCABULARIES)}"
        )
    return about


def write_about(folder: Path, about: dict[str, Any]) -> None:
    """Write the vocab.json of a folder."""
    text = json.dumps(about, indent=1, ensure_ascii=False) + "\n"
    with atomic_file(folder / VOCAB_ABOUT) as file:
        file.write(text.encode())

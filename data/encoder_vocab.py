"""The two sides of a classifier's text: sentences in the pieces of a Hugging Face encoder, and labels.

A tokenizer becomes one file, vocab.tokenizer.json, whatever files it was made of; the package `tokenizers`
alone reads it again. vocab.json holds the ids of its special tokens, the encoder's longest input and the
labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headgates.data.atomic_file import atomic_file
from headgates.data.hf_vocab import check_tokens, library
from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import DataError, reworded
from headgates.data.vocab import VOCAB_ABOUT, write_about

ENCODER_KIND = "encoder"
TOKENIZER = "vocab.tokenizer.json"
FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")  # one of which an encoder's tokenizer has


def write_vocabs(encoder: Path, folder: Path, labels: Sequence[str], *, max_positions: int) -> None:
    """Write the tokenizer of an encoder's folder, and the labels, to a run folder.

    Raises DataError where the folder has no tokenizer, or one that lacks a special token."""
    if not any(list(encoder.glob(name)) for name in FILES):  # the library would make an empty tokenizer
        raise DataError(f"{encoder} has no tokenizer; expected {', '.join(FILES)}")
    check_tokens(encoder)
    with reworded(f"{encoder} has no tokenizer that can be read", "copy its folder again"):
        tokenizer = library("transformers").AutoTokenizer.from_pretrained(
            str(encoder), local_files_only=True, trust_remote_code=False
        )
        content = tokenizer.backend_tokenizer.to_str()
    theirs = {"padding": "pad", "beginning": "cls", "end": "sep", "unknown": "unk"}
    ids = {name: getattr(tokenizer, f"{own}_token_id") for name, own in theirs.items()}
    if missing := [name for name, number in ids.items() if number is None]:
        raise DataError(
            f"the tokenizer in {encoder} has no token for {', '.join(missing)}; expected one of an encoder "
            "such as BERT"
        )
    about = {"kind": ENCODER_KIND, "specials": ids, "max_positions": max_positions, "labels": list(labels)}
    with atomic_file(folder / TOKENIZER) as file:
        file.write(content.encode())
    write_about(folder, about)


def load(
    folder: Path, about: Mapping[str, Any], source: SpecialTokens | None, target: SpecialTokens | None
) -> "tuple[EncoderVocab, LabelVocab]":
    """The two vocabularies of a folder whose vocab.json is `about`. Raises DataError where a file is missing
    or broken."""
    path = folder / TOKENIZER
    if not path.is_file():
        raise DataError(f"{path} is missing, the tokenizer of the run; bring it back, or repeat with --fresh")
    with reworded(f"{path} or {VOCAB_ABOUT} beside it is broken", "repeat with --fresh"):
        tokenizer = library("tokenizers").Tokenizer.from_file(str(path))
        specials = source or SpecialTokens(**about["specials"])
        sentences = EncoderVocab(tokenizer, path, specials, int(about["max_positions"]))
        return sentences, LabelVocab(about["labels"], folder / VOCAB_ABOUT)


class EncoderVocab:
    """Sentences, or pairs with a tab between them, to ids as the encoder reads them but for the end, which is
    added to every source.

    The names of special tokens in a text are text. Longer inputs than `max_positions` are cut, the longer
    sentence first."""

    def __init__(self, tokenizer: Any, path: Path, specials: SpecialTokens, max_positions: int) -> None:
        self.tokenizer, self.path, self.specials = tokenizer, path, specials
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_positions)
        tokenizer.encode_special_tokens = True
        if tokenizer.encode("").ids[-1:] != [specials.end]:
            raise DataError(
                f"the tokenizer in {path} does not end a sentence with id {specials.end}; expected one of "
                "an encoder such as BERT"
            )

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """As in `Vocabulary`, but that the ids begin with the beginning, and those of an empty line are it
        alone."""
        texts: list[Any] = [tuple(line.split("\t", 1)) if "\t" in line else line for line in lines]
        return [encoding.ids[:-1] for encoding in self.tokenizer.encode_batch(texts)]

    def decode(self, ids_list: Sequence[Sequence[int]]) -> list[str]:
        return [str(text) for text in self.tokenizer.decode_batch([list(ids) for ids in ids_list])]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(self.tokenizer.id_to_token(int(i))) for i in ids]

    def characters(self, text: str) -> list[list[int]]:
        """As in `Vocabulary`; special tokens stand for no character."""
        first, _, second = text.partition("\t")
        encoding = self.tokenizer.encode(first, second) if second else self.tokenizer.encode(text)
        starts = {None: 0, 0: 0, 1: len(first) + 1}
        placed = zip(encoding.offsets, encoding.sequence_ids, strict=True)
        found = [
            [i + starts[part] for i in range(begin, end)] if part is not None else []
            for (begin, end), part in placed
        ]
        return [[i for i in own if not text[i].isspace()] for own in found[:-1]]


class LabelVocab:
    """Labels by their numbers, from 0; no special token has one of these."""

    def __init__(self, labels: Sequence[str], path: Path) -> None:
        self.labels, self.path = [str(label) for label in labels], path
        first = len(self.labels)
        self.specials = SpecialTokens(padding=first, beginning=first + 1, end=first + 2, unknown=first + 3)
        self.numbers = {label: number for number, label in enumerate(self.labels)}

    def __len__(self) -> int:
        return len(self.labels)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """One id a label. Raises DataError at a label that the model does not know."""
        if (unknown := next((label for label in lines if label not in self.numbers), None)) is not None:
            raise DataError(
                f"the label {unknown!r} is none of the model's, which are {', '.join(self.labels[:12])}"
            )
        return [[self.numbers[label]] for label in lines]

    def decode(self, ids_list: Sequence[Sequence[int]]) -> list[str]:
        return [self.labels[ids[0]] for ids in ids_list]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.labels[i] for i in ids]

    def characters(self, text: str) -> list[list[int]]:
        return [list(range(len(text)))]

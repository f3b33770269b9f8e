"""Large text in the user's cache folder: read once and tokenised once, in parallel, into Arrow files that are
mapped into memory.

    CACHE/text/KEY/pairs.arrow          the pairs as text: `source`, `target`; KEY: of the files' bytes
    CACHE/text/KEY/about.json           what was left out
    CACHE/text/KEY/ids-VOCABULARY.arrow the same pairs as ids of pieces; VOCABULARY: of the tokenizer's files

Each appears whole or not at all; a process that finds another at work waits for it. What is torn all the
same, or gone, is made again. The folder may be removed at any time."""

import hashlib
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from headgates.data.atomic_file import atomic_file
from headgates.data.atomic_folder import atomic_folder
from headgates.data.cache import cache_folder, locked
from headgates.data.encoded import SIDES, EncodedPairs, ids_type, record_batch
from headgates.data.file_digest import file_digest
from headgates.data.ranks import processor_cores
from headgates.data.text import DataError, ParallelText, reworded, without_empty
from headgates.data.vocab import ABOUT as VOCAB_ABOUT
from headgates.data.vocab import Vocabulary

T = TypeVar("T")
VERSION = 1  # of what is in a store; another one is another key
ROWS = 2**14  # pairs of a record batch: what a process holds at once
FEW = 4  # record batches that are tokenised sooner than processes start
PROCESSES = 16  # that tokenise, at most
PAIRS, ABOUT = "pairs.arrow", "about.json"
TEXT = pa.schema([(side, pa.large_string()) for side in SIDES])


class StoredLines(Sequence[str]):
    """One side of a stored text; a slice of it is a list."""

    def __init__(self, batches: Sequence[pa.RecordBatch], side: str) -> None:
        self._lines = pa.chunked_array([batch.column(side) for batch in batches], pa.large_string())

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, item: Any) -> Any:
        found = self._lines[item]
        return found.to_pylist() if isinstance(item, slice) else found.as_py()

    def __iter__(self) -> Iterator[str]:
        for chunk in self._lines.chunks:
            yield from chunk.to_pylist()


def made_once(path: Path, opened: Callable[[Path], T | None], make: Callable[[], None], doing: str) -> T:
    """What `opened` finds at `path`, made first where it finds nothing; a process that finds another at work
    waits for it. Raises DataError where it cannot be made."""
    found = opened(path)
    if found is None:
        with locked(f"text-{path.parent.name}-{path.stem}"):
            found = opened(path)  # made by another process in the meantime
            if found is None:
                print(f"{doing} into {path}, once", file=sys.stderr, flush=True)
                cure = (
                    "large text needs room for a copy and for its pieces: free some space, or set "
                    "HEADGATES_CACHE to another folder"
                )
                with reworded(f"cannot write {path}", cure, OSError):
                    make()
                found = opened(path)
    if found is None:
        raise DataError(
            f"{path} cannot be read, though it was written a moment ago; remove it, and see whether the disk "
            "is sound"
        )
    return found


# ---------------------------------------------------------------- text


def stored_text(
    files: Sequence[str | Path],
    pairs: Callable[[], Iterable[tuple[str, str]]],
    *,
    skip_empty: bool,
    key: Sequence[str] = (),
) -> ParallelText:
    """Return the text of these files from its store, which is made now unless it is there.

    pairs: reads the files; skip_empty: leave out and count pairs with an empty side; key: what else the pairs
    depend on. Raises DataError where `pairs` does, or the store cannot be written."""
    with ThreadPoolExecutor() as threads:  # hashing leaves other threads free to run
        known = [VERSION, skip_empty, *key, *threads.map(file_digest, files)]
    folder = cache_folder() / "text" / hashlib.sha256(json.dumps(known).encode()).hexdigest()[:20]
    doing = f"reading {' and '.join(map(str, files))}"
    return made_once(folder, open_text, lambda: write_text(folder, pairs(), skip_empty=skip_empty), doing)


def open_text(folder: Path) -> ParallelText | None:
    """The text of a store; None where there is none, or it is torn."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        batches = mapped(folder / PAIRS)
        if batches is None:
            return None
        source, target = (StoredLines(batches, side) for side in SIDES)
        return ParallelText(source, target, dict(about["skipped"]), folder)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def write_text(folder: Path, pairs: Iterable[tuple[str, str]], *, skip_empty: bool) -> None:
    """Write a store."""
    skipped: dict[str, int] = {}
    kept = without_empty(pairs, skipped) if skip_empty else iter(pairs)
    with atomic_folder(folder) as draft:
        with pa.OSFile(str(draft / PAIRS), "wb") as file, pa.ipc.new_file(file, TEXT) as writer:
            while some := list(islice(kept, ROWS)):
                sides = [[pair[i] for pair in some] for i in range(len(SIDES))]
                writer.write_batch(pa.record_batch(sides, schema=TEXT))
        (draft / ABOUT).write_text(json.dumps({"skipped": skipped}) + "\n", encoding="utf-8")


def mapped(path: Path) -> list[pa.RecordBatch] | None:
    """The record batches of an Arrow file, mapped into memory; None where the file is torn or not there."""
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (OSError, pa.ArrowException):
        return None
    sound = [batch.num_rows for batch in batches[:-1]] == [ROWS] * (len(batches) - 1)
    return batches if sound else None


# ---------------------------------------------------------------- ids


def encoded(text: ParallelText, source_vocab: Vocabulary, target_vocab: Vocabulary) -> EncodedPairs:
    """Return the ids of every pair of a text: of one in memory at once, of a stored one from its store, where
    they are made the first time. Raises DataError where the store cannot be written."""
    if text.store is None:
        ids = source_vocab.encode(text.sources), target_vocab.encode(text.targets)
        largest = max((max(sentence) for side in ids for sentence in side if sentence), default=0)
        return EncodedPairs([record_batch(*ids, ids_type(largest))])
    store, total = text.store, len(text)
    path = store / f"ids-{vocabulary_key(source_vocab, target_vocab)}.arrow"

    def opened(path: Path) -> EncodedPairs | None:
        batches = mapped(path)
        whole = batches is not None and sum(batch.num_rows for batch in batches) == total
        return EncodedPairs(batches) if batches is not None and whole else None

    def make() -> None:
        write_ids(path, store / PAIRS, source_vocab, target_vocab)

    return made_once(path, opened, make, f"tokenising {total:,} pairs")


def vocabulary_key(*vocabs: Vocabulary) -> str:
    """Digits that tell two tokenizers from others: their kinds, and the bytes of their files."""
    about: list[Any] = []
    for vocab in vocabs:
        files = (
            sorted(vocab.path.parent.glob("vocab*"))
            if (vocab.path.parent / VOCAB_ABOUT).is_file()
            else [vocab.path]
        )
        about.append([type(vocab).__name__, len(vocab), *((file.name, file_digest(file)) for file in files)])
    return hashlib.sha256(json.dumps([VERSION, about]).encode()).hexdigest()[:20]


def write_ids(path: Path, text: Path, source_vocab: Vocabulary, target_vocab: Vocabulary) -> None:
    """Tokenise a stored text, on all processor cores that this process may use."""
    count = len(mapped(text) or ())
    ids = ids_type(max(len(source_vocab), len(target_vocab)) - 1)
    work = (str(text), source_vocab, target_vocab, ids)
    cure = "was there too little memory? repeat the command"
    with reworded(f"a process that tokenised {text} was killed", cure, BrokenExecutor), ExitStack() as stack:
        file = stack.enter_context(atomic_file(path))
        writer = stack.enter_context(pa.ipc.new_file(file, record_batch([], [], ids).schema))
        run: Callable[..., Iterable[pa.RecordBatch]] = map
        if count > FEW:  # processes of their own, not forks: torch's threads do not outlive a fork
            processes, spawn = min(processor_cores(), PROCESSES, count), multiprocessing.get_context("spawn")
            run = stack.enter_context(ProcessPoolExecutor(processes, spawn, start, work)).map
        else:
            start(*work)
        for batch in run(encode_batch, range(count)):
            writer.write_batch(batch)


# of a process that tokenises: the record batches of text, both vocabularies, the type of ids
_work: tuple[Any, ...] = ()


def start(text: str, source_vocab: Vocabulary, target_vocab: Vocabulary, ids: pa.DataType) -> None:
    """What a process has to know before its first batch."""
    global _work
    _work = (mapped(Path(text)), source_vocab, target_vocab, ids)
    parent = multiprocessing.parent_process()
    if parent is not None:  # where it is killed nobody else would end this process
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


def encode_batch(number: int) -> pa.RecordBatch:
    """The ids of one record batch of text."""
    batches, *vocabs, ids = _work
    source, target = (
        vocab.encode(batches[number].column(side).to_pylist())
        for side, vocab in zip(SIDES, vocabs, strict=True)
    )
    return record_batch(source, target, ids)

"""Large text in the user's cache folder: read once and tokenised once, in parallel, into Arrow files that are
mapped into memory.

    CACHE/text/KEY/pairs.arrow          the pairs as text: `source`, `target`; KEY: of the files' bytes
    CACHE/text/KEY/about.json           what was left out
    CACHE/text/KEY/ids-VOCABULARY.arrow the same pairs as ids of pieces; VOCABULARY: of the tokenizer's files

Each appears whole or not at all; a process that finds another at work waits for it. What is torn all the
same, or gone, is made again. The folder may be removed at any time."""

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from headgates.data.atomic_file import atomic_file
from headgates.data.atomic_folder import atomic_folder
from headgates.data.cache import cache_folder, locked
from headgates.data.encoded import SIDES, EncodedPairs, ids_type, record_batch
from headgates.data.file_digest import file_digest
from headgates.data.ranks import alone, processor_cores, sendable
from headgates.data.text import DataError, ParallelText, reworded, without_empty
from headgates.data.vocab import VOCAB_ABOUT, Vocabulary, load_vocabs

T = TypeVar("T")
Work = tuple[Vocabulary, Vocabulary, pa.DataType]  # source, target, the type of ids
STORE_VERSION = 1  # of what is in a store; another one is another key
BATCH_ROWS = 2**14  # pairs of a record batch: what a process holds at once
FEW_BATCHES = 4  # record batches that are tokenised sooner than processes start
PROCESSES = 16  # that tokenise, at most
MEMORY_CURE = "was there too little memory? repeat the command"  # where one of them ended
PAIRS, ABOUT = "pairs.arrow", "about.json"
TEXT_SCHEMA = pa.schema([(side, pa.large_string()) for side in SIDES])


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
                # alone: of several ranks, whichever came first; the others wait for the lock
                with reworded(f"cannot write {path}", cure, OSError), alone():
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
        known = [STORE_VERSION, skip_empty, *key, *threads.map(file_digest, files)]
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
        with pa.OSFile(str(draft / PAIRS), "wb") as file, pa.ipc.new_file(file, TEXT_SCHEMA) as writer:
            while some := list(islice(kept, BATCH_ROWS)):
                sides = [[pair[i] for pair in some] for i in range(len(SIDES))]
                writer.write_batch(pa.record_batch(sides, schema=TEXT_SCHEMA))
        (draft / ABOUT).write_text(json.dumps({"skipped": skipped}) + "\n", encoding="utf-8")


def mapped(path: Path) -> list[pa.RecordBatch] | None:
    """The record batches of an Arrow file, mapped into memory; None where the file is torn or not there."""
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (OSError, pa.ArrowException):
        return None
    sound = [batch.num_rows for batch in batches[:-1]] == [BATCH_ROWS] * (len(batches) - 1)
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
    return hashlib.sha256(json.dumps([STORE_VERSION, about]).encode()).hexdigest()[:20]


def write_ids(path: Path, text: Path, source_vocab: Vocabulary, target_vocab: Vocabulary) -> None:
    """Tokenise a stored text, on all processor cores that this process may use."""
    batches = mapped(text) or []
    ids = ids_type(max(len(source_vocab), len(target_vocab)) - 1)
    work = source_vocab, target_vocab, ids
    with ExitStack() as stack:
        file = stack.enter_context(atomic_file(path))
        writer = stack.enter_context(pa.ipc.new_file(file, record_batch([], [], ids).schema))
        if len(batches) <= FEW_BATCHES:
            found: Iterable[pa.RecordBatch] = map(partial(encode_batch, work=work), batches)
        else:
            found = in_processes(stack, len(batches), text, work)
        for batch in found:
            writer.write_batch(batch)


def encode_batch(batch: pa.RecordBatch, *, work: Work) -> pa.RecordBatch:
    """The ids of one record batch of text."""
    *vocabs, ids = work
    source, target = (
        vocab.encode(batch.column(side).to_pylist()) for side, vocab in zip(SIDES, vocabs, strict=True)
    )
    return record_batch(source, target, ids)


def in_processes(stack: ExitStack, count: int, text: Path, work: Work) -> Iterator[pa.RecordBatch]:
    """Yield what `encode_batch` makes of each record batch of `text`, in order; `stack` ends the processes.

    They are programs of their own: torch's threads do not outlive a fork, and a process of `multiprocessing`
    imports the user's script, which trains again unless it asks for its `__name__`."""
    share = min(processor_cores(), PROCESSES, count)
    paths = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    processes: list[Any] = []
    for start in range(share):
        process: Any = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import tokenise; tokenise()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | paths,
            )
        )
        stack.callback(process.kill)
        processes.append(process)
        with reworded(f"a process that tokenises {text} did not start", MEMORY_CURE, OSError):
            pickle.dump((text, range(start, count, share), sent(work)), process.stdin)
            process.stdin.close()
    for number in range(count):
        with reworded(
            f"a process that tokenised {text} was killed", MEMORY_CURE, EOFError, pickle.UnpicklingError
        ):
            found = pickle.load(processes[number % share].stdout)
        if isinstance(found, Exception):
            raise found
        yield found


def sent(work: Work) -> tuple[Any, pa.DataType]:
    """The work as another process takes it: a tokenizer of other files than SentencePiece's, which may not
    pickle, as the arguments of `load_vocabs`."""
    source, target, ids = work
    folder = source.path.parent
    as_files = (folder / VOCAB_ABOUT).is_file()
    return (folder, source.specials, target.specials) if as_files else (source, target), ids


def received(vocabs: Any, ids: pa.DataType) -> Work:
    source, target = load_vocabs(*vocabs) if isinstance(vocabs[0], Path) else vocabs
    return source, target, ids


def tokenise() -> None:
    """The program of one of `in_processes`: its share of the record batches, to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # what a tokenizer prints is no batch
        text, numbers, given = pickle.load(sys.stdin.buffer)
        work = received(*given)
        with pa.ipc.open_file(pa.memory_map(str(text))) as reader:
            for number in numbers:
                try:
                    found = encode_batch(reader.get_batch(number), work=work)
                except Exception as error:
                    found = sendable(error)  # raised by who started it
                try:
                    pickle.dump(found, out)
                    out.flush()
                except BrokenPipeError:  # who started it is gone
                    os._exit(1)

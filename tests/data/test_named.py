"""Named corpora: whole, wrong, missing and broken-off files."""

import gzip
import hashlib
from email.message import Message
from http.client import IncompleteRead
from io import BufferedReader, BytesIO, RawIOBase
from pathlib import Path
from urllib.error import HTTPError

import pytest

from headgates.data import DataError, load_corpus, named

SHARED = Path(__file__).parents[2] / "../shared/data"
SPLITS = {"train": 7, "val": 3, "test_2016_flickr": 5, "test_2017_flickr": 2}
FILES = {
    f"{split}.{language}.gz": gzip.compress(
        "".join(f"{language} {split} {i}\n" for i in range(lines)).encode(), mtime=0
    )
    for split, lines in SPLITS.items()
    for language in ("en", "de", "fr")
}


class Home:
    """Stands for where the files are published: opens URLs, and remembers which were asked for. What a file
    is mapped to is an error, or its content."""

    def __init__(self) -> None:
        self.files: dict[str, bytes | Exception | RawIOBase] = dict(FILES)
        self.asked: list[str] = []

    def open(self, url: str, timeout: float):
        name = url.removeprefix(f"{named.MULTI30K_HOME}/")
        self.asked.append(name)
        content = self.files[name]
        if isinstance(content, Exception):
            raise content
        return BufferedReader(content) if isinstance(content, RawIOBase) else BytesIO(content)


class Endless(RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        return len(buffer)


@pytest.fixture
def home(monkeypatch, tmp_path) -> Home:
    home = Home()
    monkeypatch.setattr("urllib.request.urlopen", home.open)
    monkeypatch.setenv("HEADGATES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        named, "MULTI30K_SHA256", {name: hashlib.sha256(body).hexdigest() for name, body in FILES.items()}
    )
    monkeypatch.setattr(named, "MULTI30K_BROKEN_GERMAN", (2, 5))
    return home


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_corpus_is_downloaded_checked_and_kept(home, tmp_path):
    corpus = load_corpus("multi30k")
    assert (len(corpus.valid), len(corpus.test), len(corpus.extra["test_2017_flickr"])) == (3, 5, 2)
    assert (corpus.src, corpus.tgt, corpus.test.sources[0], corpus.test.targets[4]) == (
        "en", "de", "en test_2016_flickr 0", "de test_2016_flickr 4",
    )  # fmt: skip
    kept = files_in(tmp_path / "cache" / "multi30k")
    assert kept == sorted(name for name in FILES if ".fr." not in name)
    asked = list(home.asked)
    assert load_corpus("multi30k").train == corpus.train
    assert home.asked == asked, "the second time everything is in the cache"


def test_the_broken_training_pairs_of_german_are_dropped_and_counted(home):
    train = load_corpus("multi30k").train
    assert train.sources == [f"en train {i}" for i in (0, 2, 3, 5, 6)]
    assert train.targets == [f"de train {i}" for i in (0, 2, 3, 5, 6)]
    assert train.skipped == {"broken in the original": 2}


@pytest.mark.parametrize("inside", ["multi30k", "."])
def test_copies_in_data_dir_are_used_without_asking_the_server(home, tmp_path, inside):
    folder = tmp_path / "mine" / inside
    folder.mkdir(parents=True)
    for name, body in FILES.items():
        (folder / name).write_bytes(body)
    assert len(load_corpus("multi30k", data_dir=tmp_path / "mine").train) == 5
    assert home.asked == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (gzip.compress(b"something else\n", mtime=0), r"its 35 bytes have the SHA-256 .*"),
        (HTTPError("url", 404, "Not Found", Message(), None), r"Not Found \(HTTP 404\).*"),
        (IncompleteRead(b"half"), "IncompleteRead"),
        (Endless(), "its 10,000 bytes have"),
    ],
)
def test_a_file_that_does_not_come_is_named_and_not_kept_and_the_next_run_goes_on(
    home, tmp_path, monkeypatch, content, why
):
    monkeypatch.setattr(named, "LARGEST_REPLY", 10_000)
    home.files["train.de.gz"] = content
    with pytest.raises(DataError, match=rf"could not download .*train\.de\.gz .*: {why}.*say --data-dir DIR"):
        load_corpus("multi30k")
    assert files_in(tmp_path / "cache") == ["train.en.gz"]
    home.files["train.de.gz"] = FILES["train.de.gz"]
    assert len(load_corpus("multi30k").train) == 5


def test_a_download_that_takes_too_long_is_stopped(home, monkeypatch):
    monkeypatch.setattr(named, "DOWNLOAD_PATIENCE", 0)
    with pytest.raises(DataError, match=r"train\.en\.gz .* bytes came in 0 seconds"):
        load_corpus("multi30k")


def test_a_damaged_local_copy_is_named_and_left_alone(home, tmp_path):
    (tmp_path / "train.en.gz").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"train\.en\.gz is not the published multi30k file.*delete it"):
        load_corpus("multi30k", data_dir=tmp_path)
    assert (tmp_path / "train.en.gz").read_bytes() == b"damaged"


@pytest.mark.parametrize(
    ("src", "tgt", "says"),
    [("en", "cs", "in multi30k: en, de, fr; got en and cs"), ("de", "de", "got de and de")],
)
def test_a_language_it_has_not_is_an_error_before_any_download(home, src, tgt, says):
    with pytest.raises(DataError, match=says):
        load_corpus("multi30k", src=src, tgt=tgt)
    assert home.asked == []


@pytest.mark.skipif(
    not (SHARED / "multi30k").is_dir(), reason="the real Multi30k files are not beside the checkout"
)
def test_the_published_files_pass_and_have_the_known_sizes():
    corpus = load_corpus("multi30k", data_dir=SHARED)
    splits = corpus.train, corpus.valid, corpus.test, corpus.extra["test_2017_flickr"]
    assert list(map(len, splits)) == [28998, 1014, 1000, 1000]
    assert min(len(line) for line in corpus.train.targets) > 2, "the two broken lines are gone"
    assert len(load_corpus("multi30k", data_dir=SHARED, src="en", tgt="fr").train) == 29000

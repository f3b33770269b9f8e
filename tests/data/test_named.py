"""Named corpora against a server on localhost: whole, wrong, missing and broken-off files."""

import gzip
import hashlib
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

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


class Server:
    """Serves `files` under /multi30k/ and remembers what was asked for. A file in `broken` ends half way."""

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.broken: set[str] = set()
        self.endless: set[str] = set()  # sent until the client has gone
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                name = self.path.removeprefix("/multi30k/")
                body = outer.files.get(name)
                if name in outer.endless:
                    self.send_response(200)
                    self.end_headers()
                    with suppress(OSError):
                        while True:
                            self.wfile.write(bytes(10_000))
                    return
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if name in outer.broken else body)

            def log_message(self, *args: object) -> None:
                """Keeps the test's output clean."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server(monkeypatch, tmp_path) -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("HEADGATES_MIRROR", server.url + "/")
    monkeypatch.setenv("HEADGATES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(
        named, "MULTI30K_SHA256", {name: hashlib.sha256(body).hexdigest() for name, body in FILES.items()}
    )
    monkeypatch.setattr(named, "MULTI30K_BROKEN_GERMAN", (2, 5))
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_corpus_is_downloaded_checked_and_kept(server, tmp_path):
    corpus = load_corpus("multi30k")
    assert (len(corpus.valid), len(corpus.test), len(corpus.extra["test_2017_flickr"])) == (3, 5, 2)
    assert (corpus.src, corpus.tgt, corpus.test.sources[0], corpus.test.targets[4]) == (
        "en", "de", "en test_2016_flickr 0", "de test_2016_flickr 4",
    )  # fmt: skip
    kept = files_in(tmp_path / "cache" / "multi30k")
    assert kept == sorted(name for name in FILES if ".fr." not in name)
    asked = list(server.asked)
    assert load_corpus("multi30k").train == corpus.train
    assert server.asked == asked, "the second time everything is in the cache"


def test_the_broken_training_pairs_of_german_are_dropped_and_counted(server):
    train = load_corpus("multi30k").train
    assert train.sources == [f"en train {i}" for i in (0, 2, 3, 5, 6)]
    assert train.targets == [f"de train {i}" for i in (0, 2, 3, 5, 6)]
    assert train.skipped == {"broken in the original": 2}


@pytest.mark.parametrize("inside", ["multi30k", "."])
def test_copies_in_data_dir_are_used_without_asking_the_server(server, tmp_path, inside):
    folder = tmp_path / "mine" / inside
    folder.mkdir(parents=True)
    for name, body in FILES.items():
        (folder / name).write_bytes(body)
    assert len(load_corpus("multi30k", data_dir=tmp_path / "mine").train) == 5
    assert server.asked == []


def test_a_wrong_file_from_the_server_is_not_kept(server, tmp_path):
    server.files["train.de.gz"] = gzip.compress(b"something else\n")
    with pytest.raises(DataError, match=r"train\.de\.gz .*: its 35 bytes have the SHA-256 .*--data-dir"):
        load_corpus("multi30k")
    assert files_in(tmp_path / "cache") == ["train.en.gz"]


def test_a_file_the_server_does_not_have_is_named_with_the_way_out(server, tmp_path):
    del server.files["train.en.gz"]
    with pytest.raises(
        DataError,
        match=r"train\.en\.gz .*Not Found \(HTTP 404\).*put them in DIR/multi30k, and say --data-dir",
    ):
        load_corpus("multi30k")
    assert files_in(tmp_path / "cache") == []


def test_a_download_that_breaks_off_leaves_nothing_and_the_next_run_mends_it(server, tmp_path):
    server.broken.add("train.en.gz")
    with pytest.raises(DataError, match=r"could not download .*train\.en\.gz"):
        load_corpus("multi30k")
    assert files_in(tmp_path / "cache") == []
    server.broken.clear()
    assert len(load_corpus("multi30k").train) == 5


@pytest.mark.parametrize(
    ("limit", "value", "reason"),
    [("LARGEST_REPLY", 10_000, "its 10,000 bytes have"), ("DOWNLOAD_PATIENCE", 0, "bytes came in 0 seconds")],
)
def test_a_download_without_an_end_is_stopped(server, tmp_path, monkeypatch, limit, value, reason):
    server.endless.add("train.en.gz")
    monkeypatch.setattr(named, limit, value)
    with pytest.raises(DataError, match=rf"could not download .*train\.en\.gz .*: .*{reason}"):
        load_corpus("multi30k")
    assert files_in(tmp_path / "cache") == []


def test_a_damaged_local_copy_is_named_and_left_alone(server, tmp_path):
    (tmp_path / "train.en.gz").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"train\.en\.gz is not the published multi30k file.*delete it"):
        load_corpus("multi30k", data_dir=tmp_path)
    assert (tmp_path / "train.en.gz").read_bytes() == b"damaged"


@pytest.mark.parametrize(
    ("src", "tgt", "says"),
    [("en", "cs", "in multi30k: en, de, fr; got en and cs"), ("de", "de", "got de and de")],
)
def test_a_language_it_has_not_is_an_error_before_any_download(server, src, tgt, says):
    with pytest.raises(DataError, match=says):
        load_corpus("multi30k", src=src, tgt=tgt)
    assert server.asked == []


@pytest.mark.skipif(
    not (SHARED / "multi30k").is_dir(), reason="the real Multi30k files are not beside the checkout"
)
def test_the_published_files_pass_and_have_the_known_sizes():
    corpus = load_corpus("multi30k", data_dir=SHARED)
    assert (
        len(corpus.train),
        len(corpus.valid),
        len(corpus.test),
        len(corpus.extra["test_2017_flickr"]),
    ) == (28998, 1014, 1000, 1000)
    assert min(len(line) for line in corpus.train.targets) > 2, "the two broken lines are gone"
    assert len(load_corpus("multi30k", data_dir=SHARED, src="en", tgt="fr").train) == 29000

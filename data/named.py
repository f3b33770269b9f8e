"""Corpora known by name: found in a folder or downloaded from their public home, checked against a SHA-256,
kept.

Multi30k, task 1: captions of Flickr photographs, Elliott et al. 2016 (arXiv:1605.00459) and 2017
(arXiv:1710.07177); github.com/multi30k/dataset. Its authors give it for research and education, not for
commercial use."""

import hashlib
import http.client
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from headgates.data.atomic_file import atomic_file
from headgates.data.cache import cache_folder
from headgates.data.file_digest import file_digest
from headgates.data.parallel import read_pairs, two_languages
from headgates.data.splits import Corpus
from headgates.data.text import DataError, ParallelText

MULTI30K_HOME = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
MULTI30K_LANGUAGES = ("en", "de", "fr")
# lines of train.de, from 1: '.' and '@@' against whole English sentences
MULTI30K_BROKEN_GERMAN = (16510, 16664)
MULTI30K_SHA256 = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
    "test_2017_flickr.en.gz": "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
    "test_2017_flickr.de.gz": "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
    "test_2017_flickr.fr.gz": "3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496",
}
# bytes and seconds of one download; the largest published file has less than a megabyte
LARGEST_REPLY, DOWNLOAD_PATIENCE = 2**25, 600


def multi30k(*, src: str | None, tgt: str | None, data_dir: str | Path | None, seed: int) -> Corpus:
    """Multi30k between two of en, de, fr (default en to de): 29,000 training pairs, val, test_2016_flickr,
    and test_2017_flickr in `extra`.

    Pairs with German lose the two training pairs whose German is broken. `seed` chooses nothing here: the
    text is fixed."""
    del seed
    src, tgt = two_languages(src or "en", tgt or "de", MULTI30K_LANGUAGES, "multi30k")

    def pairs(split: str, *, skip_empty: bool) -> ParallelText:
        files = [_obtain(f"{split}.{language}.gz", data_dir) for language in (src, tgt)]
        return read_pairs(*files, skip_empty=skip_empty)

    # the SHA-256 vouches for no empty lines, and line numbers must hold for the next step
    train = pairs("train", skip_empty=False)
    if "de" in (src, tgt):
        whole = [i for i in range(len(train)) if i + 1 not in MULTI30K_BROKEN_GERMAN]
        train = train.only(whole, reason="broken in the original")
    return Corpus(
        train=train,
        valid=pairs("val", skip_empty=True),
        test=pairs("test_2016_flickr", skip_empty=False),
        name="multi30k",
        description=f"Multi30k task 1, {src} to {tgt}; test set test_2016_flickr",
        src=src,
        tgt=tgt,
        extra={"test_2017_flickr": pairs("test_2017_flickr", skip_empty=False)},
    )


def _obtain(file: str, data_dir: str | Path | None) -> Path:
    """Return the path of DATA_DIR/multi30k/FILE or DATA_DIR/FILE, or download the file to
    DATA_DIR/multi30k/FILE.

    Without data_dir the user's cache takes its place (data/cache.py). Raises DataError if a download fails or
    the SHA-256 is not the published one."""
    if data_dir is not None and not Path(data_dir).is_dir():
        raise DataError(
            f"--data-dir {data_dir} is not a folder; make it first, or leave it out to use the cache"
        )
    root = Path(data_dir) if data_dir is not None else cache_folder()
    sha256, target = MULTI30K_SHA256[file], root / "multi30k" / file
    for path in (target, root / file):
        if path.is_file():
            found = file_digest(path)
            if found != sha256:
                raise DataError(
                    f"{path} is not the published multi30k file: its SHA-256 is {found[:12]}..., expected "
                    f"{sha256[:12]}...; "
                    f"delete it, and the next run downloads it again"
                )
            return path
    url, cure = (
        f"{MULTI30K_HOME}/{file}",
        "get the files yourself, put them in DIR/multi30k, and say --data-dir DIR",
    )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as part, urllib.request.urlopen(url, timeout=30) as reply:
            content, late = b"", time.monotonic() + DOWNLOAD_PATIENCE
            while len(content) < LARGEST_REPLY and (block := reply.read1(LARGEST_REPLY - len(content))):
                content += block
                if time.monotonic() > late:  # each read may take 30 s, and one of a byte is a read
                    raise OSError(f"only {len(content):,} bytes came in {DOWNLOAD_PATIENCE} seconds")
            found = hashlib.sha256(content).hexdigest()
            if found != sha256:
                raise OSError(
                    f"its {len(content):,} bytes have the SHA-256 {found[:12]}..., expected {sha256[:12]}..."
                )
            part.write(content)
    except (OSError, http.client.HTTPException, ValueError) as error:
        # URLError and HTTPError carry the plain words in .reason
        reason = getattr(error, "reason", None) or error
        code = f" (HTTP {error.code})" if isinstance(error, urllib.error.HTTPError) else ""
        raise DataError(
            f"could not download {url} to {target.parent}: {reason}{code}; files already there are kept: run "
            f"again, or {cure}"
        ) from error
    print(f"downloaded multi30k: {file}, {len(content) / 1e6:.2f} MB", file=sys.stderr)
    return target

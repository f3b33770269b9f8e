"""A vocab.json that somebody else made: one clear error at whatever it says, and no file of another folder is
read."""

import json
import shutil
from pathlib import Path

import pytest

from headgates.data.text import DataError
from headgates.data.vocab import load_vocabs

PIECES = Path(__file__).parents[2] / "examples/toy_run/toy-en-de-none-s1/vocab.model"
WHOLE = {
    "kind": "marian",
    "files": ["vocab0.spm", "vocab0.spm"],
    "cutters": [None, None],
    "sizes": [9999, 9999],
    "language": None,
}


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "run").mkdir()
    shutil.copyfile(PIECES, tmp_path / "run/vocab0.spm")
    return tmp_path / "run"


def load(folder, **changes):
    (folder / "vocab.json").write_text(json.dumps(WHOLE | changes), encoding="utf-8")
    return load_vocabs(folder)


def test_the_whole_description_is_read(folder):
    source, target = load(folder)
    assert source is target
    assert source.decode(source.encode(["The dog sleeps."])) == ["The dog sleeps."]


@pytest.mark.parametrize(
    "changes",
    [
        *({"kind": kind} for kind in ([], {}, None, 3, "other")),
        *({"language": language} for language in ([], {"a": 1}, 3, ">>xyz<<")),
        *({"sizes": sizes} for sizes in (None, [1], [float("inf"), 1], [float("nan")] * 2, "99", [[], []])),
        *({"files": files} for files in (None, [], ["vocab0.spm"], [3, 4], ["", ""], ["x\0", "y"], {"a": 1})),
        *({"cutters": cutters} for cutters in (None, [], [3, 4])),
        *(
            {"kind": kind, "source": side, "target": side}
            for kind in ("fairseq", "huggingface", "encoder")
            for side in (None, [], "x", {})
        ),
        {
            "kind": "huggingface",
            "files": {"../vocab0.spm": "source.spm"},
            "class": "MarianTokenizer",
            "source": {},
            "target": {},
        },
    ],
)
def test_what_is_no_description_is_one_error(folder, changes):
    with pytest.raises(DataError) as error:
        load(folder, **changes)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["../other.spm", "/other.spm", "a/../../other.spm"])
def test_a_file_of_another_folder_is_not_read(folder, name):
    shutil.copyfile(PIECES, folder.parent / "other.spm")
    with pytest.raises(DataError, match=r"run/other\.spm"):
        load(folder, files=[name, name])

"""Finished runs: one of an untrained translator, written in a moment, and a base and its gated run that
`fit.py` trains once a session."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import AnyStr

import pytest
import yaml

from headgates.bridges.formats import copy_vocabs
from headgates.gates import HeadMap
from headgates.models.checkpoint import save_model
from headgates.models.translator import Translator
from headgates.records.folder import RunFolder
from headgates.records.row import ResultRow
from tests.worlds.ranks import Command

ROOT = Path(__file__).parents[2]
TINY = ["--config", str(ROOT / "configs/toy_tiny.yaml")]


def assert_one_line(error: str, *words: str) -> None:
    """What a script wrote to stderr is one line that says what was wrong, with these words."""
    (line,) = error.strip().splitlines()
    assert ".py: error: " in line
    assert [word for word in words if word not in line] == [], line


def well(answer: tuple[int, AnyStr, str]) -> AnyStr:
    """What a script wrote to stdout, which ended well."""
    code, out, error = answer
    assert code == 0, error
    return out


def write_run(path: Path, translator: Translator, xi: HeadMap | None, **config: object) -> RunFolder:
    """A finished run of this translator with the systems base and, where xi is given, l0, whose gates it
    is."""
    folder = RunFolder(path)
    folder.write_text(
        "config.yaml", yaml.safe_dump({"seed": 1, "search": asdict(translator.search), **config})
    )
    copy_vocabs(translator, folder.path)
    save_model(folder / "best.pt", translator.model)
    folder.add_system("base", folder / "best.pt", None)
    if xi is not None:
        folder.add_system("l0", folder / "best.pt", xi.to_json())
    folder.write_json("result.json", {"system": "base" if xi is None else "l0", "finished": True})
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """The one run of fit.py for all scripts' tests: a tiny gated run of the toy pair, its base and what it
    wrote to the terminal, beside them; no test writes in it."""
    runs = tmp_path_factory.mktemp("trained") / "runs"
    words = [str(ROOT / "fit.py"), *TINY, "--runs", str(runs)]
    ((code, out, error),) = Command(words, runs.parent / "said", COLUMNS="140").end()
    assert code == 0, error
    for name, text in (("stdout", out), ("stderr", error)):
        (runs.parent / name).write_text(text)
    return runs


@pytest.fixture(scope="module")
def as_if_learned() -> Iterator[None]:
    """Tiny models learn too little for a word on their heads; here they have learned enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResultRow, "unlearned", "")
        yield

"""`--runtime`: CTranslate2 in the place of a run's own search, exported once, and by `auto` only where it
gives the same lines."""

import json

import pytest

from headgates.bridges import formats
from headgates.commands import translate
from headgates.models.translator import Translator
from headgates.workbench.runtime import open_runtime
from headgates.workbench.source import Source, open_source

pytest.importorskip("ctranslate2")


@pytest.fixture
def source(finished, runs) -> Source:
    return open_source(runs / finished.path.name, "base", device="cpu")


@pytest.fixture
def opened(source):
    """opened(runtime, ...) is what translates, and what the user was told."""

    def open_(runtime, *, beam=0, plain=True):
        told = []
        return open_runtime(source, runtime, beam=beam, plain=plain, threads=1, report=told.append), told

    return open_


def parity_of(source, **changes):
    """Change what the kept export found with the run's beam."""
    path = source.folder / "exported/base-ct2/export.json"
    about = json.loads(path.read_text())
    about["parity"][f"beam_{source.translator.search.beam}"] |= changes
    path.write_text(json.dumps(about))


def test_it_is_exported_once_and_translates_as_the_run_does(source, opened):
    exported, told = opened("ct2")
    assert len(told) == 1
    assert "exporting base for CTranslate2 and checking it on" in told[0]
    lines = source.lines("test")[0]
    ours = source.translator.translate_n_best(lines)
    theirs = exported.translate_n_best(lines)
    assert type(exported).__name__ == "CTranslate2Model"
    assert [best[0].score for best in theirs] == pytest.approx([best[0].score for best in ours], abs=1e-3)
    assert opened("ct2")[1] == [], "kept"


def test_other_weights_are_exported_anew(source, opened):
    opened("ct2")
    next(source.model.parameters()).data.mul_(1.01)
    source.translator.model.eval()
    assert len(opened("ct2")[1]) == 1
    assert opened("ct2")[1] == []


def test_auto_takes_it_where_all_checked_lines_are_the_same(source, opened):
    opened("ct2")
    parity_of(source, differing=0)
    assert type(opened("auto")[0]).__name__ == "CTranslate2Model"
    parity_of(source, differing=2, largest_score_gap=1e-5)
    ours, (told,) = opened("auto")
    assert isinstance(ours, Translator)
    assert "CTranslate2 translates 2 of" in told
    assert "--runtime ct2 takes it all the same" in told


@pytest.mark.parametrize("asked", [{"beam": 7}, {"plain": False}])
def test_auto_leaves_alone_what_was_not_checked(source, opened, asked):
    ours, told = opened("auto", **asked)
    assert isinstance(ours, Translator)
    assert told == []
    assert not (source.folder / "exported").exists()


def test_auto_goes_on_without_the_package_and_ct2_does_not(opened, monkeypatch):
    def missing(packages):
        raise ValueError("this format needs ctranslate2; it is not installed")

    monkeypatch.setattr(formats, "require_packages", missing)
    ours, told = opened("auto")
    assert isinstance(ours, Translator)
    assert "translating with torch: this format needs ctranslate2" in told[-1]
    with pytest.raises(ValueError, match="this format needs ctranslate2"):
        opened("ct2")


def test_the_script_translates_by_it(source, tmp_path, called):
    (tmp_path / "in.txt").write_text("\n".join(source.lines("test", 5)[0]) + "\n")
    run, words = called(translate), ("--input", tmp_path / "in.txt", "--threads", 1, "--runtime")
    own = (source.folder.path, "--system", "base", "--device", "cpu", *words)
    code, out, error = run(*own, "ct2")
    assert (code, len(out.splitlines())) == (0, 5)
    assert "exporting base for CTranslate2" in error
    code, out_of_int8, error = run(*own, "int8", "--quiet")
    assert (code, error) == (0, "")
    folder = source.folder / "exported/base-ct2"
    assert run(folder, *words, "int8")[:2] == (0, out_of_int8)
    about = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps(about | {"format": "onnx"}))
    code, _, error = run(folder, *words, "int8")
    assert code == 1
    assert "is exported to onnx, which runs as it is; leave it out" in error

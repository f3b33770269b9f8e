"""`--runtime`: CTranslate2 in the place of a run's own search, exported once, and by `auto` only where it
gives the same lines."""

import json

import pytest
import torch

from headgates.bridges import formats
from headgates.bridges.parity import ParityError
from headgates.commands import translate
from headgates.configs.translating import Translating
from headgates.models.checkpoint import save_model
from headgates.models.translator import Translator
from headgates.records import runtime
from headgates.records.runtime import CHECKED, kept_runtime, open_runtime
from headgates.records.source import Source, open_source
from tests.worlds.imports import imported_by

pytest.importorskip("ctranslate2")


@pytest.fixture
def source(finished, runs) -> Source:
    return open_source(runs / finished.path.name, "base", device="cpu")


@pytest.fixture
def opened(source):
    """opened(runtime, ...) is what translates, and what was printed."""

    def open_(name, **settings):
        printed = []
        config = Translating(str(source.folder.path), runtime=name, threads=1, **settings)
        return open_runtime(source, config, printed.append), printed

    return open_


def parity_of(source, name=None, **changes):
    """Change what the kept export found with the run's beam, or by another name."""
    path = source.folder / "exported/base-ct2/export.json"
    about = json.loads(path.read_text())
    about["parity"][name or f"beam_{source.translator.search.beam}"] |= changes
    path.write_text(json.dumps(about))


def test_it_is_exported_once_and_translates_as_the_run_does(source, opened):
    exported, printed = opened("ct2")
    assert len(printed) == 1
    assert "exporting base for CTranslate2 and checking it on" in printed[0]
    lines = source.lines("test")[0]
    ours = source.translator.translate_n_best(lines)
    theirs = exported.translate_n_best(lines)
    assert type(exported).__name__ == "CTranslate2Model"
    assert [best[0].score for best in theirs] == pytest.approx([best[0].score for best in ours], abs=1e-3)
    assert opened("ct2")[1] == [], "kept"


def test_another_system_of_the_name_is_exported_anew(source, opened):
    opened("ct2")
    next(source.model.parameters()).data.mul_(1.01)
    save_model(source.folder / "best.pt", source.model)
    source.folder.add_system("base", source.folder / "best.pt", None)
    assert len(opened("ct2")[1]) == 1
    assert opened("ct2")[1] == []


def test_auto_takes_it_where_it_is_faster_and_all_checked_lines_are_the_same(source, opened):
    opened("ct2")
    parity_of(source, differing=0, speedup=1.7)
    exported, (printed,) = opened("auto")
    assert type(exported).__name__ == "CTranslate2Model"
    assert printed.startswith("translating by CTranslate2: 1.7 times as fast as the run's own search, and")
    parity_of(source, "greedy", differing=0, speedup=3.4)
    assert "CTranslate2: 3.4 times as fast" in opened("auto", beam=1)[1][0], "of the beam that is asked for"
    parity_of(source, speedup=0.8)
    ours, (printed,) = opened("auto")
    assert isinstance(ours, Translator)
    assert "has 0.80 times its speed here" in printed
    parity_of(source, differing=2, largest_score_gap=1e-5)
    ours, (printed,) = opened("auto")
    assert isinstance(ours, Translator)
    assert "CTranslate2 translates 2 of" in printed
    assert "--runtime ct2 takes it all the same" in printed


def test_a_failed_check_is_kept(source, opened, monkeypatch):
    """It takes as long as one that is passed."""

    def fail(*args, **options):
        raise ParityError("parity failed: another token")

    monkeypatch.setattr(formats, "parity", fail)
    assert "parity failed" in opened("auto")[1][-1]
    monkeypatch.setattr(formats, "export", None)
    ours, (printed,) = opened("auto")
    assert isinstance(ours, Translator)
    assert "parity failed: another token" in printed


def test_translating_imports_no_more_than_its_runtime(source, opened):
    """torch alone takes two seconds to import, what trains and draws two more."""
    opened("ct2")
    parity_of(source, differing=0, speedup=2.0)
    run = source.folder.path
    text, own = source.lines("test", 1)[0][0] + "\n", ("--system", "base", "--device", "cpu", "--runtime")
    for words in ((run, *own, "auto"), (run, *own, "ct2"), (run / "exported/base-ct2",)):
        assert "torch" not in imported_by("translate.py", *words, text=text), words
    heavy = {"pytorch_lightning", "torchmetrics", "transformers", "scipy", "matplotlib", "torch._dynamo"}
    assert heavy & imported_by("translate.py", run, *own, "torch", text=text) == set()


@pytest.mark.parametrize("asked", [{"beam": 7}, {"scores": True}])
def test_auto_leaves_alone_what_was_not_checked(source, opened, asked):
    ours, printed = opened("auto", **asked)
    assert isinstance(ours, Translator)
    assert printed == []
    assert not (source.folder / "exported").exists()


def test_auto_goes_on_without_the_package_and_ct2_does_not(opened, monkeypatch):
    def missing(packages):
        raise ValueError("this format needs ctranslate2; it is not installed")

    monkeypatch.setattr(runtime, "require_packages", missing)
    ours, printed = opened("auto")
    assert isinstance(ours, Translator)
    assert len(printed) == 1, "nothing is said of an export that cannot be"
    assert "translating by the run's own search: this format needs ctranslate2" in printed[-1]
    with pytest.raises(ValueError, match="this format needs ctranslate2"):
        opened("ct2")


def test_bf16_is_the_run_s_own_search_with_rounded_weights_and_says_which_lines_change(source, opened):
    rounded, (printed,) = opened("bf16")
    lines = source.lines("test", CHECKED)[0]
    state = {
        name: weight.bfloat16().float() if weight.is_floating_point() else weight
        for name, weight in source.model.state_dict().items()
    }
    found, exact = rounded.translate(lines), source.translator.translate(lines)
    differing = sum(a != b for a, b in zip(found, exact, strict=True))
    assert printed == f"bf16: {differing} of {len(lines)} test lines are not those of fp32"
    assert opened("bf16")[1] == [printed], "counted once"
    assert {weight.dtype for weight in source.model.parameters()} == {torch.float32}
    source.model.load_state_dict(state)
    near = source.translator.score(lines, found), rounded.score(lines, found)
    assert [sum(row) for row in near[1]] == pytest.approx([sum(row) for row in near[0]], rel=0.05, abs=0.5)


def test_auto_leaves_a_model_alone_that_rounds_otherwise_and_an_export_leaves_it_as_it_is(source, opened):
    """CTranslate2 in fp32 says the same as the run in fp32, not as the run in bf16."""
    for weight in source.model.parameters():
        weight.data = weight.data.bfloat16()
    said = "it is in bfloat16, CTranslate2 in float32; --runtime ct2 takes it all the same"
    found, (printed,) = opened("auto")
    assert found is source.translator
    assert said in printed
    opened("ct2")  # which exports it
    assert {weight.dtype for weight in source.model.parameters()} == {torch.bfloat16}
    found, (printed,) = opened("auto")
    assert found is source.translator
    assert said in printed
    config = Translating(str(source.folder.path), runtime="auto", threads=1, device="cpu")
    assert kept_runtime(config, print) is None


@pytest.mark.parametrize("runtime", ["bf16", "int8"])
def test_without_text_a_rounded_runtime_translates_and_says_that_nothing_was_counted(
    source, opened, monkeypatch, runtime
):
    opened("ct2")
    lines = source.lines("test", 3)[0]

    def no_text(*_):
        raise ValueError("no text: give --data")

    monkeypatch.setattr(Source, "lines", no_text)
    found, (printed,) = opened(runtime)
    assert len(found.translate(lines)) == 3
    assert printed == f"{runtime}: how many lines it translates otherwise is not known: no text: give --data"


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
    assert "is exported to ct2, which runs as it is; leave it out" in run(folder, *words, "bf16")[2]
    about = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps(about | {"format": "onnx"}))
    code, _, error = run(folder, *words, "int8")
    assert code == 1
    assert "is exported to onnx, which runs as it is; leave it out" in error

"""prune.py --trim-vocabulary: a run with the pieces of a text alone, which is an ordinary run."""

import pytest

from headgates.commands import export, fit, prune, translate
from headgates.records.folder import RunFolder
from headgates.records.source import open_source
from tests.worlds.runs import assert_one_line, well

FEW = ["--test-sentences", "17", "--set", "valid_sentences=19", "--threads", "1"]


@pytest.fixture
def prune_here(called):
    return called(prune)


@pytest.fixture
def text(base, tmp_path):
    """A file of seven test lines, one of them empty, as the user has it."""
    lines = open_source(base.path).lines("test", 7)[0]
    lines[3] = ""
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return tmp_path / "in.txt"


def trimmed(runs, prune_here, text, *words: object) -> tuple[RunFolder, str]:
    out = well(
        prune_here(runs / "toy-en-de-none-s1", "--trim-vocabulary", text, "--save", "trimmed", *FEW, *words)
    )
    return RunFolder.open(runs / "trimmed"), out


def test_the_text_is_translated_as_before_by_a_smaller_run(runs, base, prune_here, called, text, tmp_path):
    run, out = trimmed(runs, prune_here, text)
    assert "Of the 7 lines of the text 0 are cut otherwise and 0 translated otherwise" in out
    lines = text.read_text(encoding="utf-8").splitlines()
    whole, less = (open_source(each.path).translator for each in (base, run))
    assert less.translate(lines, beam=1) == whole.translate(lines, beam=1)
    about = run.read_json("result.json")["trimmed"]
    assert about["pieces"]["source"] == [len(whole.source_vocab), len(less.source_vocab)]
    sizes = [sum(each.numel() for each in one.model.parameters()) for one in (whole, less)]
    assert about["parameters"] == sizes
    assert about["bytes"] == [4 * size for size in sizes]
    assert sizes[1] < sizes[0]
    (row,) = run.rows()
    assert (row.system, row.parameters, row.heads_open) == ("base", sizes[1], row.heads_total)
    tests = open_source(base.path).lines("test", 17)[0]
    outputs = (run / "hypotheses/base.txt").read_text(encoding="utf-8").splitlines()
    before = whole.translate(tests, beam=1)
    assert outputs == less.translate(tests, beam=1)
    assert about["test"]["lines"] == 17
    assert about["test"]["translated_otherwise"] == sum(a != b for a, b in zip(outputs, before, strict=True))
    files = ["--input", text, "--output", tmp_path / "out.txt"]
    assert called(translate)(run.path, *files, "--beam", "1")[0] == 0
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines() == whole.translate(lines, beam=1)


def test_it_goes_out_with_its_own_files_and_as_another_library_s(runs, prune_here, called, text):
    for package in ("ctranslate2", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed; it is in the extra export or hf")
    run, _ = trimmed(runs, prune_here, text)
    assert (run / "report.html").is_file()
    for format in ("ct2", "hf"):
        out = well(called(export)(run.path, "--to", format, "--sentences", "7", "--threads", "1"))
        assert "7 of 7" in out


def test_it_is_pruned_trimmed_again_and_trained_on(runs, prune_here, called, text):
    run, _ = trimmed(runs, prune_here, text)
    pieces = run.read_json("result.json")["trimmed"]["pieces"]
    well(prune_here(run.path, "--heads", "3", "--save", "fewer", "--by", "weight-norm", *FEW))
    assert RunFolder.open(runs / "fewer").rows()[0].heads_open == 3
    well(prune_here(runs / "fewer", "--trim-vocabulary", text, "--save", "again", *FEW))
    again = RunFolder.open(runs / "again")
    assert again.rows()[0].heads_open == 3
    assert again.read_json("result.json")["trimmed"]["pieces"]["source"][0] == pieces["source"][1]
    words = ["--base", run.path, "--runs", runs, "--finetune.epochs", "1", "--systems", "base,l0"]
    words += ["--precision", "32", "--set", "look_sentences=0"]
    well(called(fit)(*words, "--gate", "l0", "--name", "gated", "--test-sentences", "17"))
    assert {row.system for row in RunFolder.open(runs / "gated").rows()} == {"base", "l0"}


def test_targets_and_folders_are_text_too(runs, base, prune_here, text, tmp_path):
    alone, _ = trimmed(runs, prune_here, text)
    target = tmp_path / "in.de"
    target.write_text("Der Vogel singt .\n" * 7, encoding="utf-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("train.en", "train.de", "valid.en", "valid.de", "test.en", "test.de"):
        (folder / name).write_text("two lines .\nzwei Zeilen .\n")
    well(prune_here(base.path, "--trim-vocabulary", f"{text}:{target},{folder}", "--save", "both", *FEW))
    less = open_source(runs / "both").translator.target_vocab
    whole = open_source(base.path).translator.target_vocab
    for line in (["Der Vogel singt ."], ["zwei Zeilen ."]):
        assert less.pieces(less.encode(line)[0]) == whole.pieces(whole.encode(line)[0])
    assert len(open_source(alone.path).translator.target_vocab) < len(less)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--save", "x", "--heads", "3"], "a step of its own"),
        (["--save", "x", "--kinds", "ffn"], "a step of its own"),
        (["--save", "x", "--reconstruct", "out"], "a step of its own"),
        ([], "add --save NAME"),
        (["--save", "toy-en-de-none-s1"], "there already"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_no_run(runs, base, prune_here, text, words, said):
    code, _, error = prune_here(base.path, "--trim-vocabulary", text, *words, *FEW)
    assert code
    assert said in error.splitlines()[0]
    assert "Traceback" not in error
    assert not (runs / "x").exists()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("none.txt", "no file"),
        ("empty.txt", "no line with text"),
        ("a:b:c", "expected a file, SOURCE:TARGET"),
    ],
)
def test_text_that_is_not_there_is_one_line(base, prune_here, tmp_path, monkeypatch, place, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n\n")
    code, _, error = prune_here(base.path, "--trim-vocabulary", place, "--save", "x", *FEW)
    assert code
    assert_one_line(error, said)
    assert not base.path.with_name("x").exists()

"""prune.py as its user meets it: a comparison, the second call, a model of a model, and what it refuses."""

import shutil
from pathlib import Path

import pytest
import yaml

from headgates.commands import prune
from headgates.gates import Subnet, find_sites
from headgates.lightning_modules import stage as training
from headgates.models.translator import Translator
from headgates.records.folder import RunFolder
from tests.worlds.made_runs import BASE, opened
from tests.worlds.runs import assert_one_line, well

FEW = ["--threads", "1"]


@pytest.fixture
def prune_here(called):
    """prune_here(words...) -> (exit code, stdout, stderr)."""
    return called(prune)


def test_several_values_make_a_comparison_which_a_second_call_only_shows(tiny, prune_here, monkeypatch):
    words = [tiny / BASE, "--by", "importance,random", "--heads", "9,4", *FEW]
    first = well(prune_here(*words))
    assert len([*tiny.glob("toy-en-de-*-s1")]) == 5
    (folder,) = tiny.glob("compare-*")
    assert (folder / "compare.csv").is_file()
    monkeypatch.setattr(training, "run_stage", None)
    monkeypatch.setattr(Translator, "translate", None)
    second = well(prune_here(*words))
    assert "4 recipes, 0 of them to make" in second
    assert first[first.index("──") :] == second[second.index("──") :]


def test_without_a_number_shares_of_the_heads_are_tried(tiny, prune_here):
    well(prune_here(tiny / BASE, "--by", "random", *FEW))
    runs = [RunFolder(path) for path in tiny.glob("*-random-*")]
    assert sorted(run.row_of("pruned").heads_open for run in runs) == [2, 4, 8, 12]


def test_a_smaller_model_is_made_smaller_again(tiny, prune_here):
    well(prune_here(tiny / BASE, "--by", "random", "--heads", "9", *FEW))
    (nine,) = tiny.glob("*-random-9-s1")
    well(prune_here(nine, "--by", "random", "--heads", "4", "--name", "again", *FEW))
    run = RunFolder(tiny / "again")
    assert sum(site.heads for site in find_sites(opened(run).model)) == 4
    assert run.row_of("base").heads_open == 9
    assert run.outputs("base") == RunFolder(nine).outputs("pruned")
    subnet = Subnet.from_json(run.row_of("pruned").subnet)
    assert {site.name: site.heads for site in subnet.units} == {
        site.name: site.heads for site in Subnet.of(opened(RunFolder(nine)).model).units
    }


def test_another_test_set_has_a_table_of_its_own(tiny, prune_here, tmp_path):
    source = opened(RunFolder(tiny / BASE))
    for side, lines in zip(("en", "de"), source.lines("valid", 13), strict=True):
        (tmp_path / f"other.{side}").write_text("".join(line + "\n" for line in lines))
    also = f"{tmp_path}/other.en:{tmp_path}/other.de"
    out = well(prune_here(tiny / BASE, "--by", "random", "--heads", "9", "--also", also, *FEW))
    assert "2 systems on" in out
    assert "-other: test set" in " ".join(out.split())


def test_a_trimmed_vocabulary_translates_its_text_as_before(tiny, prune_here, tmp_path):
    base = opened(RunFolder(tiny / BASE))
    lines = base.lines("test", 7)[0]
    lines[3] = ""
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    well(prune_here(tiny / BASE, "--trim-vocabulary", tmp_path / "in.txt", *FEW))
    (run,) = map(RunFolder, tiny.glob("*-trimmed-s1"))
    less = opened(run)
    assert less.translator.translate(lines, beam=1) == base.translator.translate(lines, beam=1)
    about = run.read_json("result.json")["trimmed"]
    sizes = [sum(each.numel() for each in one.model.parameters()) for one in (base, less)]
    assert (about["parameters"], sizes[1] < sizes[0]) == (sizes, True)
    assert run.row_of("pruned").heads_open == 16
    well(prune_here(run.path, "--by", "random", "--heads", "4", "--name", "fewer", *FEW))
    assert RunFolder(tiny / "fewer").row_of("pruned").heads_open == 4


# ---------------------------------------------------------------- bad input


def change_config(run: Path, **changes: object) -> None:
    path = run / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


BROKEN = {
    "no run": (lambda base: base.rename(base.with_name("toy-en-de-none-s7")), ["no run at", "none-s7"]),
    "unfinished": (lambda base: (base / "result.json").unlink(), ["is not finished", "--resume"]),
    "text gone": (lambda base: change_config(base, data="toyy"), ["no corpus named 'toyy'", "toy"]),
    "weights changed": (lambda base: shutil.copy(base / "vocab.model", base / "best.pt"), ["best.pt"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_run_that_cannot_be_pruned_is_one_line_that_says_why(tiny, prune_here, case):
    damage, parts = BROKEN[case]
    damage(tiny / BASE)
    code, _, error = prune_here(tiny / BASE, "--by", "random", "--heads", "4")
    assert code == 1
    assert_one_line(error, *parts)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [("--runtime int8", 2, "give --speedup too"), ("--train.lr 0.1 --heads 4", 1, "contradicts")],
)
def test_what_cannot_be_is_one_line_that_says_why(tiny_runs, prune_here, flags, code, said):
    found, _, error = prune_here(tiny_runs / BASE, *flags.split())
    assert found == code
    assert_one_line(error.splitlines()[0], said)

"""The run folder: found or named, whole or refused, and silent about the machine."""

import json
import re
import sys

import pytest

from headgates.records.folder import RunFolder, find_runs
from headgates.records.provenance import provenance


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    run = RunFolder(tmp_path / "toy-en-de-base-s1")
    run.write_text("config.yaml", "seed: 1\nsearch: {beam: 3}\n")
    return run


def test_a_run_that_is_not_there_names_the_nearest(folder):
    with pytest.raises(ValueError, match=r"no run at .*did you mean .*toy-en-de-base-s1'\?"):
        RunFolder.open(folder.path.with_name("toy-en-de-bse-s1"))


def test_a_run_that_is_like_no_other_is_refused_without_a_guess(folder):
    with pytest.raises(ValueError, match="no run at") as error:
        RunFolder.open(folder.path.with_name("zzz"))
    assert "did you mean" not in str(error.value)


@pytest.mark.parametrize("content", ["{", "- 1\n- 2\n", "", "a: \x00"])
def test_a_broken_configuration_is_one_line_that_names_the_file(folder, content):
    folder.write_text("config.yaml", content)
    with pytest.raises(ValueError, match=r"config\.yaml") as error:
        folder.config()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("systems.json", "[]", "holds a list, not a dict"),
        ("systems.json", '{"l0": {"weights": "best.pt"}}', "l0 has no weights, or gates that are no map"),
        ("systems.json", '{"l0": {"weights": "best.pt", "xi": [1]}}', "gates that are no map of heads"),
        ("systems.json", "[" * 100_000, "is broken"),
        ("result.json", '{"rows": "base"}', "rows is a str, not a list"),
        ("result.json", '{"system": 3}', "system is a int, not a str"),
        (
            "result.json",
            '{"rows": [{"system": "base", "heads_open": 3, "heads_total": 3, "heads_by_kind": {}, "bleu": '
            'NaN, "bleu_ci95": [1, 2]}]}',
            "bleu is nan, expected a finite number",
        ),
        ("result.json", '{"rows": ["base"]}', "a row of result.json is not what fit.py writes"),
        (
            "result.json",
            '{"rows": [{"system": "base", "bleu": 3, "bleu_signature": "x"}]}',
            "a row of result.json is not what",
        ),
    ],
)
def test_a_file_of_another_shape_is_one_line_that_names_it(folder, name, content, error):
    folder.write_text(name, content.replace("{", '{"version": 1, ', 1) if content[0] == "{" else content)
    with pytest.raises(ValueError, match=re.escape(error)) as refused:
        folder.systems() if name == "systems.json" else folder.rows()
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "--fresh" in str(refused.value)


STAGE = {"weights": "best.pt", "epochs": 3, "steps": 7, "best_epoch": 1, "losses": [3.0], "seconds": 1.5}


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("importance-trained-stage.json", STAGE | {"losses": "none"}, "losses is a str, not a list"),
        ("stage.json", {"weights": "best.pt"}, "epochs is missing, expected a int"),
        ("curves/importance.json", {"cache_key": []}, "cache_key is a list, not a dict"),
        ("speed/levels-all-s1.json", {"cache_key": {}}, "widths is missing, expected a dict"),
        ("speed/planned.json", {"rows": None}, "rows is missing, expected a list"),
        ("analysis/base/cards.json", {"settings": {}, "heads": {}}, "heads is a dict, not a list"),
        (
            "analysis/base/roles.json",
            {"facts": {}, "tables": []},
            "head_maps is missing, expected a dict",
        ),
    ],
)
def test_a_record_of_another_shape_is_one_line_that_names_it(folder, name, content, error):
    folder.write_json(name, content)
    with pytest.raises(
        ValueError,
        match=rf"{re.escape(name)}.* {re.escape(error)}; repeat the command that writes it with --fresh$",
    ):
        folder.read_json(name)


@pytest.mark.parametrize("content", [b'{"finished": tr', b"", b"\xff\xfe"])
def test_broken_json_is_one_line_that_names_the_file_and_the_cure(folder, content):
    (folder / "result.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"result\.json is broken .*--fresh") as error:
        folder.read_json("result.json")
    assert "\n" not in str(error.value)


def test_writing_leaves_no_temporary_file(folder):
    folder.write_json("a.json", 1)
    folder.write_text("hypotheses/b.txt", "x\n")
    assert sorted(p.relative_to(folder.path).as_posix() for p in folder.path.rglob("*") if p.is_file()) == [
        "a.json",
        "config.yaml",
        "hypotheses/b.txt",
    ]


def test_json_that_cannot_be_written_keeps_the_old_file(folder):
    folder.write_json("result.json", {"bleu": 1})
    with pytest.raises(TypeError):
        folder.write_json("result.json", {"bleu": object()})
    assert folder.read_json("result.json") == {"bleu": 1}


def test_a_run_is_finished_when_its_result_says_so(folder):
    assert not folder.finished()
    for done in (False, True):
        folder.write_json("result.json", {"finished": done})
        assert folder.finished() is done


def test_systems_are_added_one_by_one_with_weights_relative_to_the_folder(folder):
    folder.add_system("base", folder.path.parent / "other" / "best.pt", None)
    folder.add_system("l0", folder / "best.pt", {"encoder.0.enc-self": [1.0]})
    assert folder.systems() == {
        "base": {"weights": "../other/best.pt", "xi": None},
        "l0": {"weights": "best.pt", "xi": {"encoder.0.enc-self": [1.0]}},
    }


def test_all_runs_of_a_folder_are_found_by_name(folder):
    RunFolder(folder.path.with_name("another")).write_text("config.yaml", "")
    folder.path.with_name("no-run").mkdir()
    assert [run.path.name for run in find_runs(folder.path.parent)] == ["another", "toy-en-de-base-s1"]


def test_provenance_names_the_command_but_no_machine_path(monkeypatch):
    words = [
        "marian:/srv/someone/student",
        "--data",
        "/srv/disk/text",
        "--base=/srv/someone/runs/a",
        "--valid-files",
        "/srv/someone/a.en,/srv/someone/a.de",
    ]
    relative = "--data-dir ../shared/data --url http://localhost/a/b"
    monkeypatch.setattr(sys, "argv", ["/srv/someone/checkout/fit.py", *words, *relative.split()])
    text = json.dumps(provenance("cpu", "32", 3))
    assert relative in text
    assert "someone" not in text
    assert "/srv" not in text
    assert (
        "python fit.py marian:.../student --data .../text --base=.../a --valid-files .../a.en,.../a.de"
        in text
    )


def test_the_command_of_a_record_can_be_typed_again(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["headgates fit", "--name", "two words"])  # as `headgates fit` sets it
    assert provenance("cpu", "32", 3)["command"] == "headgates fit --name 'two words'"


def test_provenance_can_be_written_as_json_with_versions_and_seed():
    made = json.loads(json.dumps(provenance("cpu", "bf16", 17)))
    assert (made["seed"], made["precision"], made["device"]) == (17, "bf16", "cpu")
    assert {"python", "torch", "sentencepiece"} <= set(made["versions"])


def test_json_of_another_version_is_refused_in_one_line(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_json("result.json", {"rows": []})
    assert json.loads((tmp_path / "result.json").read_text())["version"] == 1
    assert folder.read_json("result.json") == {"rows": []}
    for version, found in (('"version": 2, ', 2), ("", None)):
        (tmp_path / "result.json").write_text("{" + version + '"rows": []}')
        with pytest.raises(ValueError, match=rf"result\.json has version {found}, expected 1; .*--fresh$"):
            folder.read_json("result.json")

"""The run folder: found or named, whole or refused, and silent about the machine."""

import json
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgates.records.folder import RunFolder
from headgates.records.provenance import provenance


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    run = RunFolder(tmp_path / "toy-en-de-base-s1")
    run.write_text("config.yaml", "seed: 1\nsearch: {beam: 3}\n")
    return run


@pytest.mark.parametrize(
    ("name", "words"), [("toy-en-de-bse-s1", "did you mean .*toy-en-de-base-s1'?"), ("zzz", "config.yaml$")]
)
def test_a_run_that_is_not_there_names_the_nearest_if_one_is_near(folder, name, words):
    with pytest.raises(ValueError, match=f"no run at .*{words}"):
        RunFolder.open(folder.path.with_name(name))


def test_a_model_of_ctranslate2_that_is_no_export_is_said_to_be_one(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"1")
    with pytest.raises(ValueError, match="no run at"):  # other libraries write a model.bin too
        RunFolder.open(tmp_path)
    (tmp_path / "shared_vocabulary.json").write_text("[]")
    with pytest.raises(ValueError, match=r"CTranslate2 that export did not write: .*Give the model"):
        RunFolder.open(tmp_path)


def test_what_two_processes_need_is_made_once(folder, monkeypatch):
    """A teacher's translations of a text take minutes; two processes that time at once have two tables."""
    begun, waited, made = threading.Event(), threading.Event(), []
    monkeypatch.setattr("headgates.records.folder.say", lambda line: waited.set())

    def make(number: int) -> dict[str, int]:
        begun.set()
        made.append(number)
        assert waited.wait(10)  # the other one has come, and found the file in work
        return {"number": number}

    def need(number: int) -> int:
        return folder.cached("scores/a.json", dict[str, Any], {"of": "a"}, lambda: make(number))["number"]

    with ThreadPoolExecutor(2) as both:
        first = both.submit(need, 1)
        assert begun.wait(10)
        assert [each.result(10) for each in (first, both.submit(need, 2))] == [1, 1]
    assert made == [1]


@pytest.mark.parametrize("content", ["{", "- 1\n- 2\n", "", "a: \x00"])
def test_a_broken_configuration_is_one_line_that_names_the_file(folder, content):
    folder.write_text("config.yaml", content)
    with pytest.raises(ValueError, match=r"^[^\n]*config\.yaml[^\n]*$"):
        folder.config()


ROW = '{"system": "base", "heads_open": 3, "heads_total": 3, "heads_by_kind": {}, "bleu_ci95": [1, 2]'


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("systems.json", "[]", "is a list, not a dict"),
        ("systems.json", '{"l0": {"xi": null}}', "l0.weights is missing"),
        ("systems.json", '{"l0": {"weights": "best.pt", "xi": [1]}}', "l0.xi is a list, not a dict"),
        ("systems.json", '{"l0": {"weights": "best.pt", "sha256": {"a": 1}}}', "l0.sha256.a is a int"),
        ("systems.json", "[" * 100_000, "is broken"),
        ("result.json", '{"finished": tr', "is broken"),
        ("result.json", "", "is broken"),
        ("result.json", '{"rows": "base"}', "rows is a str, not a list"),
        ("result.json", '{"system": 3}', "system is a int, not a str"),
        ("result.json", '{"rows": [' + ROW + ', "bleu": NaN}]}', "bleu.value is nan, expected a finite"),
        ("result.json", '{"rows": [' + ROW + ', "bleu": 1, "speed": {"median": 2}}]}', "speed.budget is mis"),
        ("result.json", '{"rows": [' + ROW + ', "bleu": 1, "subnet": []}]}', "subnet is a list"),
        ("result.json", '{"rows": ["base"]}', "rows[0] is a str, not a dict"),
        ("result.json", '{"rows": [{"system": "base", "bleu": 3, "bleu_signature": "x"}]}', "heads_open is"),
    ],
)
def test_a_file_of_another_shape_is_one_line_that_names_it(folder, name, content, error):
    folder.write_text(name, content.replace("{", '{"version": 1, ', 1) if content[:2] == '{"' else content)
    with pytest.raises(ValueError, match=re.escape(error)) as refused:
        folder.systems() if name == "systems.json" else folder.rows()
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "--fresh" in str(refused.value)


def test_writing_leaves_no_temporary_file(folder):
    folder.write_json("a.json", {})
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


def test_json_of_another_version_is_refused_in_one_line(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_json("result.json", {"rows": []})
    assert json.loads((tmp_path / "result.json").read_text())["version"] == 1
    assert folder.read_json("result.json") == {"rows": []}
    for version, found in (('"version": 2, ', 2), ("", None)):
        (tmp_path / "result.json").write_text("{" + version + '"rows": []}')
        with pytest.raises(ValueError, match=rf"result\.json has version {found}, expected 1; .*--fresh$"):
            folder.read_json("result.json")

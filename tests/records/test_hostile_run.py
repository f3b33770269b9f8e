"""A run folder that somebody else made: settings of other types, names and links that lead out of it. One
clear error, nothing outside."""

import json

import pytest
import yaml

from headgates.configs.settings import read_search
from headgates.records.folder import RunFolder

SYSTEM = {"weights": "best.pt", "xi": None}


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    run = RunFolder(tmp_path / "runs/run")
    run.write_text("config.yaml", "seed: 1\nsearch: {beam: 3}\n")
    return run


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": "x"}, "seed: expected a whole number, got 'x'"),
        ({"task": ["chess"]}, "task: expected one of"),
        ({"base": ["../outside"]}, "base is a list, expected the hash of a run"),
        ({"search": None}, "search: expected settings below it, got None"),
        ({"dynamics": "3"}, "dynamics: expected a list of whole numbers"),
        ({"name": 1.5}, "name: expected text or null"),
        ({"run_hash": {"a": 1}}, "run_hash is a dict, expected the hash of a run"),
    ],
)
def test_a_setting_of_another_type_is_one_error_that_names_it(folder, settings, message):
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with pytest.raises(ValueError) as error:
        folder.config()
    assert message in str(error.value)
    assert str(folder / "config.yaml") in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_of_another_version_are_read_as_they_are(folder):
    settings = {
        "seed": 2,
        "precision": 32,
        "lambda": 1,
        "not_yet_known": [{}],
        "search": {"beam": 2, "other": "x"},
        "base": None,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert folder.config() == settings
    assert yaml.safe_load(yaml.safe_dump({**folder.config()})) == settings


def test_a_setting_that_is_missing_is_named_where_it_is_needed(folder):
    with pytest.raises(ValueError, match=r"config\.yaml has no text, which is needed here; repeat"):
        folder.config()["text"]
    with pytest.raises(ValueError, match=r"config\.yaml has no search\.max_ratio"):
        folder.config()["search"]["max_ratio"]
    assert folder.config().get("text") is None


@pytest.mark.parametrize("name", ["../../outside/x", "a/b", "..", "", "a\n", "\u202e", "-x", "</script>"])
def test_a_system_whose_name_could_lead_elsewhere_is_refused(folder, name):
    (folder / "systems.json").write_text(json.dumps({"version": 1, name: SYSTEM}), encoding="utf-8")
    (folder / "result.json").write_text(json.dumps({"version": 1, "system": name}), encoding="utf-8")
    for read in (folder.systems, folder.own_system):
        with pytest.raises(ValueError, match="has a system called"):
            read()


@pytest.mark.parametrize("name", ["../outside.json", "analysis/../../outside.json", "linked/x.json"])
def test_nothing_is_written_outside_of_the_folder(folder, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="nothing outside is read or written for it"):
        folder.write_json(name, {})
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_is_a_link_itself_is_written_into(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder.path)
    RunFolder(tmp_path / "link").write_json("scores/x.json", {})
    assert (folder / "scores/x.json").is_file()


@pytest.mark.parametrize(
    "settings",
    [{"beam": 0}, {"beam": None}, {"width": 3}, {"max_ratio": float("nan")}, None],
)
def test_search_settings_of_a_file_are_checked_and_the_file_is_named(settings):
    with pytest.raises(
        ValueError, match=r"the search settings in here/config\.yaml are not those of this version"
    ):
        read_search(settings, "here/config.yaml")

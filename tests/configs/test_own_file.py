"""Names that others wrote: what is the user's own stays readable."""

from pathlib import Path

import pytest

from headgates.configs.own_file import own_file


def test_links_within_the_cache_of_the_hub_are_followed_and_no_further(tmp_path):
    model = tmp_path / "models--a--b"
    snapshot, blobs = model / "snapshots/123", model / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    (blobs / "abc").write_text("{}")
    (tmp_path / "key").write_text("the user's own")
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    (snapshot / "merges.txt").symlink_to("../../../key")
    assert own_file(snapshot, "config.json").read_text() == "{}"
    with pytest.raises(ValueError, match="leads out of that folder"):
        own_file(snapshot, "merges.txt")


def test_a_folder_that_is_a_link_and_one_that_is_relative_are_read(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/x").write_text("1")
    (tmp_path / "link").symlink_to("there")
    monkeypatch.chdir(tmp_path)
    for folder in ("link", "there", "./there/", tmp_path / "link"):
        assert own_file(folder, "x") == Path(folder) / "x"
    assert own_file("there", "not/yet") == Path("there/not/yet")

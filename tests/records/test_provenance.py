"""Which commit a record names."""

import subprocess
from pathlib import Path

from headgates.records import provenance


def test_the_commit_of_another_repository_in_which_it_is_installed_is_not_its_own(tmp_path, monkeypatch):
    own = tmp_path / "project"
    place = own / ".venv/lib/headgates/records/provenance.py"
    place.parent.mkdir(parents=True)
    place.touch()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(own)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "theirs"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(provenance, "__file__", str(place))
    assert provenance.commit.__wrapped__() == "unknown"
    top = own / "records/provenance.py"  # of a checkout
    top.parent.mkdir()
    top.touch()
    monkeypatch.setattr(provenance, "__file__", str(top))
    head = subprocess.run(
        [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
    )
    assert provenance.commit.__wrapped__().rstrip("+") == head.stdout.strip()
    assert Path(provenance.__file__).is_file()

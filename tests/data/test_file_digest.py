"""The digest of a large file is computed once."""

import hashlib

import pytest

from headgates.data import file_digest


@pytest.mark.parametrize("settled", [-1.0, 60.0])
def test_a_digest_is_kept_until_the_file_changes_and_not_of_one_that_just_has(tmp_path, monkeypatch, settled):
    read, path = [], tmp_path / "weights"
    whole = file_digest.file_digest
    monkeypatch.setenv("HEADGATES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(file_digest, "LARGE", 3)
    monkeypatch.setattr(file_digest, "SETTLED", settled)
    monkeypatch.setattr(file_digest, "file_digest", lambda path: read.append(path) or whole(path))
    for content in (b"abcd", b"abce"):
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        digests = {file_digest.kept_digest(path) for _ in range(3)}
        assert digests == {hashlib.sha256(content).hexdigest()}
    assert len(read) == (2 if settled < 0 else 6)

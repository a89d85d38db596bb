"""Files that are hashed while they are written."""

import hashlib

import pytest

from labelguard.storage.files import HashedFile, hash_file


def test_the_digest_is_that_of_the_file(tmp_path):
    with HashedFile(tmp_path / "file") as file:
        for data in (b"a" * 100_000, b"", memoryview(b"bc")):
            file.write(data)
    assert file.digest == hash_file(tmp_path / "file")
    assert file.digest == hashlib.sha256(b"a" * 100_000 + b"bc").hexdigest()


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "file").write_text("first")
    with pytest.raises(FileExistsError):
        HashedFile(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "first"

"""`doctor` tries the object storage that a project lives on, and says what to do where it fails."""

import pytest
from support.commands import run
from support.s3 import permit
from support.stored import ADDRESS, KINDS, begin, contents, serve

from labelguard.storage.object_store import ObjectStore

ALL = ("s3:ListBucket", "s3:PutObject", "s3:GetObject", "s3:DeleteObject")


@pytest.fixture(params=KINDS)
def store(request, tmp_path, monkeypatch):
    with serve(request.param, tmp_path, monkeypatch) as objects:
        yield objects


@pytest.fixture
def home(store, tmp_path, monkeypatch):
    return begin(tmp_path / "a", monkeypatch)


def examine(home, code):
    """The line of doctor on object storage; it ends with `code`."""
    lines = run("doctor", project=home, code=code).output.splitlines()
    [line] = [line for line in lines if "object storage" in line]
    return " ".join(line.split())


def test_a_store_that_does_all_is_found_so_and_left_as_it_was(home, store):
    store.write("witness/of/others", b"1")
    before = contents(store)
    expected = f"ok object storage {ADDRESS}: 1 object; may list, read, write and delete"
    assert examine(home, 0) == expected
    assert contents(store) == before


@pytest.mark.parametrize("act", ["list", "read", "write", "delete"])
def test_a_store_that_pretends_is_found_out(act, home, monkeypatch):
    pretended = {"list": {}, "read": b"", "write": None, "delete": None}[act]
    monkeypatch.setattr(ObjectStore, act, lambda *_: pretended)
    assert examine(home, 1).startswith(f"FAULT object storage {ADDRESS}/probe-")


@pytest.mark.integration
@pytest.mark.parametrize("lacking", ALL)
def test_a_permission_that_lacks_is_named_and_credentials_are_not(lacking, tmp_path, monkeypatch):
    with serve("s3", tmp_path, monkeypatch) as store:
        home = begin(tmp_path / "a", monkeypatch)
        with permit(monkeypatch, *(name for name in ALL if name != lacking)) as credentials:
            line = examine(home, 1)
        assert line.startswith(f"FAULT object storage {ADDRESS}/")
        assert "ACCESS_DENIED" in line and f"permit {lacking} there" in line
        assert not [word for word in credentials if word in line]
        assert len(store.list()) == (lacking in ALL[2:])


@pytest.mark.integration
@pytest.mark.parametrize("fault", ["no bucket", "no such key"])
def test_what_cannot_be_used_at_all_is_told_in_one_line(fault, tmp_path, monkeypatch):
    address = "s3://not-there/one" if fault == "no bucket" else ADDRESS
    with serve("s3", tmp_path, monkeypatch):
        home = begin(tmp_path / "a", monkeypatch, address=address)
        with permit(monkeypatch, "s3:*"):
            if fault == "no such key":
                monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANOBODYKNOWSTHIS1")
            line = examine(home, 1)
    assert line.startswith(f"FAULT object storage {address}/")
    assert "check [storage] url, AWS_ENDPOINT_URL" in line and "AKIANOBODY" not in line

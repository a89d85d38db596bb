"""A release at S3, before moto's server."""

import pytest
from pyarrow.fs import FileSelector, FileType
from support.s3 import serve_bucket

import labelguard as lg
from labelguard.errors import LabelguardError
from labelguard.project.opening import OpenProject
from labelguard.storage import destinations
from labelguard.storage.files import SUMS, hash_files

pytestmark = pytest.mark.integration
PLACE = "s3://bucket/releases/one"


@pytest.fixture
def s3(monkeypatch):
    """Storage with an empty bucket."""
    with serve_bucket(monkeypatch, "bucket") as filesystem:
        yield filesystem


def objects(s3):
    """What is in the bucket below the place: content and time by name."""
    base = PLACE.removeprefix("s3://")
    infos = s3.get_file_info(FileSelector(base, recursive=True, allow_not_found=True))
    files = [info for info in infos if info.type == FileType.File]
    read = {f.path.removeprefix(f"{base}/"): s3.open_input_file(f.path).read() for f in files}
    return read, [info.mtime_ns for info in files]


def public(project):
    [record] = OpenProject.open(project).ledger.releases.all()
    directory = OpenProject.open(project).project.releases / record.id
    files = {name: (directory / name).read_bytes() for name in hash_files(directory)}
    return {**files, "README.md": files["CARD.md"]}


def test_a_release_is_uploaded_once(used_project, s3):
    assert lg.publish("r0001", PLACE, project=used_project).where == PLACE
    before = objects(s3)
    assert before[0] == public(used_project)
    lg.publish("r0001", f"{PLACE}/", project=used_project)
    assert objects(s3) == before


def test_an_upload_that_stopped_is_completed_and_its_sums_come_last(used_project, s3, monkeypatch):
    copy, copied = destinations.PublicFile.copy_to, []

    def stop(file, target):
        if len(copied) == 3:
            raise OSError("no route to host")
        copied.append(file.path.name)
        copy(file, target)

    with monkeypatch.context() as patch:
        patch.setattr(destinations.PublicFile, "copy_to", stop)
        with pytest.raises(LabelguardError, match=f"^{PLACE}: no route to host"):
            lg.publish("r0001", PLACE, project=used_project)
    assert len(copied) == 3 and SUMS not in objects(s3)[0]
    lg.publish("r0001", PLACE, project=used_project)
    assert objects(s3)[0] == public(used_project)


def test_what_else_is_there_stays(used_project, s3):
    with s3.open_output_stream("bucket/releases/one/notes.txt") as stream:
        stream.write(b"mine")
    with pytest.raises(LabelguardError, match="holds something else"):
        lg.publish("r0001", PLACE, project=used_project)
    assert objects(s3)[0] == {"notes.txt": b"mine"}


def test_a_bucket_that_is_not_there_or_a_key_that_is_none_is_told(used_project, s3, monkeypatch):
    with pytest.raises(LabelguardError, match=r"^s3://nowhere/one: ") as refused:
        lg.publish("r0001", "s3://nowhere/one", project=used_project)
    assert "\n" not in str(refused.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(LabelguardError, match=f"^{PLACE}: ") as refused:
        lg.publish("r0001", PLACE, project=used_project)
    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_was_altered_does_not_stay(used_project, s3):
    [record] = OpenProject.open(used_project).ledger.releases.all()
    card = OpenProject.open(used_project).project.releases / record.id / "card.json"

    def change(step, share):
        card.write_text("{}")

    with pytest.raises(LabelguardError, match=r"card\.json was altered"):
        lg.publish("r0001", PLACE, project=used_project, progress=change)
    assert not {"card.json", SUMS} & objects(s3)[0].keys()

"""A release at the Hub: the committed files, and nothing else."""

import json
import os
import re
import subprocess
import sys

import polars as pl
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard, constants, snapshot_download
from labelguard_trainer.training.request import open_release
from support import hub as hubs
from support.commands import run
from support.lives import PRICE
from support.preferences import TABLE

import labelguard as lg
from labelguard.errors import LabelguardError, LedgerError, ProjectError
from labelguard.project.opening import OpenProject
from labelguard.release import card as cards
from labelguard.storage.files import SUMS, hash_files

NAME = "org/preferences"
LOADING = """
import sys, datasets
datasets.disable_progress_bars()
rows = datasets.load_dataset(sys.argv[1], split="train", cache_dir=sys.argv[2])
rows.to_parquet(sys.argv[3])
"""


@pytest.fixture
def directory(used_project):
    """The directory of the only release of a project."""
    [record] = OpenProject.open(used_project).ledger.releases.all()
    return OpenProject.open(used_project).project.releases / record.id


def contents(directory):
    return {name: (directory / name).read_bytes() for name in hash_files(directory)}


def public(directory):
    """What is public of a release: its files, and its card as README.md."""
    return {**contents(directory), "README.md": (directory / "CARD.md").read_bytes()}


def load(where, tmp_path, **environment):
    """What `load_dataset` of another process makes of it."""
    target = tmp_path / "loaded.parquet"
    command = [sys.executable, "-c", LOADING, str(where), str(tmp_path / "cache"), str(target)]
    subprocess.run(command, check=True, env={**os.environ, **environment})
    return pl.read_parquet(target)


def test_the_hub_gets_the_committed_files_and_the_card_as_readme(used_project, directory, hub):
    published = lg.publish("r0001", f"hf:{NAME}", project=used_project)
    assert published.release == directory.name
    assert published.where == f"{hub.url}/datasets/{NAME}"
    repository = hub.dataset(NAME)
    assert repository.private and repository.titles == [f"Release {directory.name}"]
    assert hub.published(NAME) == public(directory)


def test_the_same_release_again_changes_nothing(used_project, hub):
    lg.publish("r0001", f"hf:{NAME}", project=used_project)
    hub.calls.clear()
    lg.publish("r0001", f"hf:{NAME}", project=used_project)
    assert not {"commit", "upload"} & set(hub.calls)


@pytest.mark.parametrize("call", ["commit", "batch", "preupload", "create"])
def test_a_publication_that_failed_is_completed_by_the_same_command(
    call, used_project, directory, hub, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.failing.add(call)
    with pytest.raises(LabelguardError, match=f"^hf:{NAME}: .*500") as refused:
        lg.publish("r0001", f"hf:{NAME}", project=used_project)
    assert hubs.TOKEN not in str(refused.value) and "\n" not in str(refused.value)
    assert ("dataset", NAME) not in hub.repositories or not hub.published(NAME)
    hub.failing.clear()
    lg.publish("r0001", f"hf:{NAME}", project=used_project)
    assert hub.published(NAME) == public(directory)
    assert hub.calls.count("upload") == 1


def test_a_newer_release_takes_the_place_of_the_one_before(used_project, hub):
    lg.publish("r0001", f"hf:{NAME}", project=used_project)
    hub.dataset(NAME).files["data-00000-of-00002.parquet"] = b"of a larger one"
    second = lg.privatize(TABLE.slice(0, 80), **PRICE, project=used_project)
    lg.publish(second, f"hf:{NAME}", project=used_project)
    assert hub.published(NAME) == public(second.path)
    assert len(hub.dataset(NAME).titles) == 2


@pytest.mark.parametrize(
    "files", [{"notes.txt": b""}, {SUMS: b"", ".gitignore": b"*"}, {SUMS: b"", ".env": b""}]
)
def test_what_somebody_else_keeps_on_the_hub_stays(files, used_project, hub):
    hub.repositories["dataset", NAME] = hubs.Repository(True, dict(files))
    with pytest.raises(LabelguardError, match="holds something else"):
        lg.publish("r0001", f"hf:{NAME}", project=used_project)
    assert hub.published(NAME) == files and not {"upload", "preupload"} & set(hub.calls)


def test_a_release_is_public_only_where_that_was_said(used_project, directory, hub):
    hub.repositories["dataset", NAME] = hubs.Repository(private=False)
    with pytest.raises(LabelguardError, match="is public already: take another one, or --public"):
        lg.publish("r0001", f"hf:{NAME}", project=used_project)
    assert not hub.published(NAME) and not {"upload", "preupload"} & set(hub.calls)
    lg.publish("r0001", f"hf:{NAME}", public=True, project=used_project)
    assert hub.published(NAME) == public(directory)
    lg.publish("r0001", "hf:org/other", public=True, project=used_project)
    assert not hub.dataset("org/other").private
    hub.repositories["dataset", "org/third"] = hubs.Repository(private=True)
    with pytest.raises(LabelguardError, match="is private already: change that on the Hub first"):
        lg.publish("r0001", "hf:org/third", public=True, project=used_project)


def test_a_hub_that_refuses_or_is_not_there_is_told_in_one_line(used_project, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    with pytest.raises(LabelguardError, match=f"^hf:{NAME}: .*401") as refused:
        lg.publish("r0001", f"hf:{NAME}", project=used_project)
    assert "somebody" not in str(refused.value)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(LabelguardError, match=f"^hf:{NAME}: "):
        lg.publish("r0001", f"hf:{NAME}", project=used_project)
    assert not hub.repositories


def test_a_copy_from_the_hub_is_the_release(used_project, directory, hub, tmp_path):
    lg.publish("r0001", f"hf:{NAME}", project=used_project)
    copy = tmp_path / "copy"
    snapshot_download(NAME, repo_type="dataset", local_dir=copy)
    assert {".gitattributes", ".cache"} < {path.name for path in copy.iterdir()}
    assert open_release(str(copy), None).digest == open_release(str(directory), None).digest
    (copy / "README.md").write_text("something else")
    with pytest.raises(ProjectError, match=r"README\.md was added"):
        open_release(str(copy), None)


@pytest.mark.slow
def test_load_dataset_reads_what_is_on_the_hub(used_project, directory, hub, tmp_path):
    lg.publish("r0001", f"hf:{NAME}", project=used_project)
    rows = load(NAME, tmp_path, **hubs.environment(hub, tmp_path))
    assert rows.equals(lg.load(directory))


def test_the_command_says_where_the_release_is(used_project, directory, hub):
    command, where = ("release", "publish", "r0001", "--to"), f"{hub.url}/datasets/{NAME}"
    done = run(*command, f"hf:{NAME}", project=used_project)
    assert done.stdout == f"Release {directory.name} is at {where}\n"
    shown = run(*command, f"hf:{NAME}", "--json", project=used_project)
    assert json.loads(shown.stdout) == {"release": directory.name, "where": where}


@pytest.mark.parametrize(
    "to",
    [
        *("s3://bucket/prefix", "published", "../published", "argilla:name", "hf:name"),
        *("hf:org/../name", "hf:org/name/more", "hf:org/name\n", "c:/x"),
    ],
)
def test_places_of_another_kind_are_refused(to, used_project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LabelguardError, match="expected hf:ORG/NAME or CONNECTOR:TITLE"):
        lg.publish("r0001", to, project=used_project)
    assert [path.name for path in tmp_path.iterdir()] == ["project"]


@pytest.mark.parametrize("name", ["r0002", "", "../project", "r0001/../../keys", "/etc", "r0001\n"])
def test_only_a_committed_release_of_the_ledger_is_published(name, used_project, hub):
    if not name:  # which would mean the only one
        lg.privatize(TABLE.slice(0, 80), **PRICE, project=used_project)
    with pytest.raises(LedgerError, match="committed release"):
        lg.publish(name, f"hf:{NAME}", project=used_project)
    assert not hub.repositories


def alter(directory):
    rows = pq.read_table(directory / "data.parquet")
    pq.write_table(rows.slice(1), directory / "data.parquet")


def lead_away(directory):
    (directory / "card.json").rename(directory.parents[1] / "card.json")
    (directory / "card.json").symlink_to(directory.parents[1] / "card.json")


def add_keys(directory):
    (directory / "more").symlink_to(directory.parents[1] / "keys")


def add_readme(directory):
    (directory / "README.md").write_text("<script>")


def add_file(directory):
    (directory / "labels.parquet").write_bytes(b"")


def replace_directory(directory):
    moved = directory.rename(directory.parents[1] / "moved")
    directory.symlink_to(moved)
    (moved / "labels.parquet").write_bytes(b"")


@pytest.mark.parametrize(
    "attack", [alter, lead_away, add_keys, add_readme, add_file, replace_directory]
)
def test_a_release_that_does_not_verify_is_not_published(attack, used_project, directory, hub):
    attack(directory)
    with pytest.raises(LedgerError, match="nothing was published"):
        lg.publish("r0001", f"hf:{NAME}", project=used_project)
    assert not hub.repositories


@pytest.mark.parametrize("link", [False, True])
def test_a_file_that_is_changed_after_it_was_verified_does_not_leave(
    link, used_project, directory, hub, tmp_path
):
    secret = tmp_path / "secret"
    secret.write_text("{}")

    def change(step, share):
        card = directory / "card.json"
        card.unlink(missing_ok=True)
        card.symlink_to(secret) if link else card.write_text("{}")

    with pytest.raises(LabelguardError, match=r"card\.json (was altered|cannot be read)"):
        lg.publish("r0001", f"hf:{NAME}", project=used_project, progress=change)
    assert not hub.published(NAME)


HOSTILE = "x`|\n---\ntags: [evil]\n---\n<script>alert(1)</script> [click](javascript:x) ![i](//e)"


def test_names_that_others_chose_cannot_write_the_card(directory):
    card = json.loads((directory / "card.json").read_text())
    plain = DatasetCard(cards.format_markdown(card)).data.to_dict()
    card["privacy"]["public_columns"] = [HOSTILE]
    card["counts"]["left_out"] = {HOSTILE: 1}
    card["not_protected"].append(HOSTILE)
    text = cards.format_markdown(card)
    assert DatasetCard(text).data.to_dict() == plain
    assert plain["labelguard"]["epsilon"] == card["privacy"]["epsilon"]
    body = text.split("\n---\n", 1)[1]
    assert "\n---\n" not in body and "\ntags:" not in body
    [span] = [line for line in body.splitlines() if line.startswith("**Assumption.**")]
    assert span.split("`")[1].startswith("x'|")  # a code span, as far as the next backtick
    for line in body.replace(span, "").splitlines():
        assert not re.search(r"(?<!\\)(<script|\[click|!\[i|x`)", line), line


def test_the_card_passes_the_validation_of_the_hub(directory, hub):
    card = DatasetCard((directory / "CARD.md").read_text())
    card.validate(repo_type="dataset")
    assert card.data.to_dict()["labelguard"]["adjacency"] == "replace_labels"
    assert "validate" in hub.calls

"""A release at the Hub: the committed files, and nothing else."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard, constants, snapshot_download
from labelguard_trainer.training.request import open_release
from support import doors
from support import hub as hubs
from support.commands import run
from support.doors import install
from support.gated import CODE, Gates, labels
from support.lives import PRICE
from support.preferences import TABLE, files
from support.releases import make_release

import labelguard as lg
from labelguard.errors import LabelguardError, LedgerError, ProjectError
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.ledger import Ledger
from labelguard.project import backup, restore
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project
from labelguard.release import card, sections
from labelguard.release import card as cards
from labelguard.release.model_card import LearnedRelease, find_learned_releases, front_matter
from labelguard.release.writer import copy_release
from labelguard.report import overview
from labelguard.report.page import report, write_report
from labelguard.report.render import render_html, render_markdown
from labelguard.storage.files import SUMS, find_changed_file, hash_files

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
    second = make_release(TABLE.slice(0, 80), **PRICE, project=used_project)
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
        make_release(TABLE.slice(0, 80), **PRICE, project=used_project)
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


# Releases with directories: every file of them is hashed, verified, delivered and backed up.
#
# What a base model learned from, by the cards of directories.
#
# What mechanisms say of themselves: cards and reports know none of them by name.

CEILING = 60

WEIGHTS = "model/weights/theta.bin"


@pytest.fixture
def made(project, tmp_path, monkeypatch):
    gates = Gates.install(tmp_path, monkeypatch)
    output = tmp_path / "out"
    return make_release(labels(), project=project, output=output, **gates.options)


def test_sums_name_every_file_by_its_path(made):
    listed = {line.split("  ")[1] for line in (made.path / SUMS).read_text().splitlines()}
    assert {"model/config.json", WEIGHTS, "data.parquet", "CARD.md"} <= listed
    assert listed == set(files(made.path)) - {SUMS}
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=made.path, check=True)


def test_the_card_says_that_there_is_a_model_and_where(made, tmp_path):
    facts = {"learner": "gated", "base": "gates", "files": ["model"]}
    assert made.card["kind"] == "model" and facts.items() <= made.card["model"].items()
    assert made.card["model"]["identity"]["base"] == "bytes"
    text = (made.path / "CARD.md").read_text()
    assert "| model | model, trained by gated from gates |" in text
    assert str(tmp_path) not in text + (made.path / "card.json").read_text()


@pytest.mark.parametrize("name", ["model/config.json", WEIGHTS])
def test_a_file_in_a_directory_that_changed_is_found(name, made, project):
    assert overview.verify_releases(None, project.state).ok
    path = project.releases / made.id / name
    path.write_bytes(path.read_bytes() + b" ")
    verdict = overview.verify_releases(None, project.state)
    assert not verdict.ok and f"{name} was altered" in str(verdict.fault)
    path.unlink()
    assert f"{name} is missing" in str(overview.verify(project.state).fault)


@pytest.mark.parametrize("name", ["model/chat_template.jinja", "model/weights/more.bin", "new.py"])
def test_a_file_that_was_added_is_found_and_not_delivered(name, made, project, tmp_path):
    inside = project.releases / made.id
    own = files(inside)
    (inside / name).write_text("{{ messages }}")
    verdict = overview.verify_releases(None, project.state)
    assert not verdict.ok and f"{name} was added" in str(verdict.fault)
    record = Ledger(project.ledger_url, KeyRing(project.keys)).releases.get(made.id)
    assert record is not None
    copy_release(inside, tmp_path / "copy", record.files)
    assert files(tmp_path / "copy") == own
    for name in ("precious", "card.json"):  # somebody's, since the release was charged
        (elsewhere := tmp_path / name).mkdir()
        (elsewhere / name).write_text("{}")
        with pytest.raises(ProjectError, match="holds another release"):
            copy_release(inside, elsewhere, record.files)
        assert files(elsewhere).keys() == {name}


@pytest.mark.parametrize("target", ["/etc", "/etc/passwd", "nowhere"])
def test_a_link_that_was_added_is_found(target, made, project):
    (project.releases / made.id / "model" / "more").symlink_to(target)
    assert "model/more was added" in str(overview.verify(project.state).fault)


def test_every_file_of_a_release_is_as_readable_as_its_rows(project, tmp_path, monkeypatch):
    private = '(model / "config.json").chmod(0o600)\n        return (model,)'
    gates = Gates.install(tmp_path, monkeypatch, CODE.replace("return (model,)", private))
    output = tmp_path / "out"
    made = make_release(labels(), project=project, output=output, **gates.options)
    for directory in (project.releases / made.id, output):
        found = {(path.is_dir(), path.stat().st_mode & 0o777) for path in directory.rglob("*")}
        assert found == {(False, 0o644), (True, 0o755)}


@pytest.mark.parametrize("name", [WEIGHTS, "model"])
def test_a_link_is_no_file_of_a_release(name, made, tmp_path):
    expected = hash_files(made.path)
    del expected[SUMS]
    assert find_changed_file(made.path, expected) is None
    away = tmp_path / "away"
    (made.path / name).rename(away)
    (made.path / name).symlink_to(away)
    assert f"{WEIGHTS} is missing" in str(
        find_changed_file(made.path, {WEIGHTS: expected[WEIGHTS]})
    )
    with pytest.raises(ProjectError, match=f"'{name}' cannot be part of a release"):
        hash_files(made.path)


def test_a_backup_holds_them_too(made, project, tmp_path):
    file = tmp_path / "backup.tar.zst"
    backup.backup(file, project=project)
    restore.restore(file, tmp_path / "back", nothing_since=True, keys=project.keys)
    back = Project(tmp_path / "back" / ".labelguard")
    assert files(back.releases) == files(project.releases)
    assert overview.verify(back.state).ok


@pytest.mark.parametrize("name", ["two\nlines", ".hidden", "with blank", "ähnlich", "back\\slash"])
def test_names_that_sums_cannot_tell_are_refused(name, tmp_path):
    (tmp_path / name).touch()
    with pytest.raises(ProjectError, match="cannot be part of a release"):
        hash_files(tmp_path)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ProjectError, match="'pipe' cannot be part of a release"):
        hash_files(tmp_path)


ONE = LearnedRelease("r0001-a", "0" * 64, 1.0, 1e-5, "labeler", "replace_labels")


def write_card(directory, learned, tags="[]"):
    directory.mkdir()
    card = f"---\ntags: {tags}\n{front_matter(learned, 'base')}---\n"
    (directory / "TRAINING_CARD.md").write_text(card)


def write_adapter(directory, below):
    directory.mkdir()
    settings = {"base_model_name_or_path": str(below)}
    (directory / "adapter_config.json").write_text(json.dumps(settings))


def test_an_adapter_without_a_card_is_what_the_model_below_it_is(tmp_path):
    write_card(tmp_path / "raw", (), "[non-private]")
    write_card(tmp_path / "of-release", (ONE,))
    for name in ("raw", "of-release"):
        write_adapter(tmp_path / f"{name}-adapter", tmp_path / name)
    assert find_learned_releases(str(tmp_path / "of-release-adapter"), private=True) == (ONE,)
    with pytest.raises(LabelguardError, match="raw labels"):
        find_learned_releases(str(tmp_path / "raw-adapter"), private=True)
    assert find_learned_releases(str(tmp_path / "raw-adapter"), private=False) == ()


@pytest.mark.parametrize("below", [".", "openai-community/gpt2", None])
def test_of_an_adapter_of_nothing_here_nothing_is_known(tmp_path, below):
    write_adapter(tmp_path / "adapter", tmp_path / "adapter" if below == "." else below)
    assert find_learned_releases(str(tmp_path / "adapter"), private=True) == ()


def test_adapters_of_adapters_are_followed_and_not_in_circles(tmp_path):
    write_card(tmp_path / "base", (ONE,))
    for name, below in (("a", "base"), ("b", "a"), ("c", "d"), ("d", "c")):
        write_adapter(tmp_path / name, tmp_path / below)
    assert find_learned_releases(str(tmp_path / "b"), private=True) == (ONE,)
    assert find_learned_releases(str(tmp_path / "c"), private=True) == ()


BUDGET: dict[str, Any] = {"epsilon": 3, "delta": 1e-5}

MECHANISM = Path(doors.__file__).with_name("sealed_mechanism.py").read_text(encoding="utf-8")


@pytest.fixture
def sealed(tmp_path, monkeypatch):
    """A release by a mechanism of another package."""
    install(tmp_path / "site", "labelguard.mechanisms", "sealed", MECHANISM, monkeypatch)
    return make_release(TABLE, project=lg.init(tmp_path), mechanism="sealed", **BUDGET)


def test_a_mechanism_of_another_package_speaks_in_card_and_report(sealed, tmp_path):
    assert sealed.card["seal"] == {"wax": "red <b>"}
    text = (sealed.path / "CARD.md").read_text()
    assert r"| wax | red \<b\> |" in text and "| duplicates | none to speak of |" in text
    made = report(project=tmp_path)
    [own] = [section for section in made.sections if section.id == "seal"]
    assert own.title == f"The seal of this release ({sealed.id})" and own.chart
    page = render_html(made)
    assert "It is sealed with wax." in page and "red &lt;b&gt;" in page and "red <b>" not in page
    assert "It is sealed with wax." in render_markdown(made)


@pytest.mark.slow
def test_a_card_outlives_its_mechanism(sealed, tmp_path, monkeypatch):
    monkeypatch.undo()  # the package is gone
    [gone] = sections.load_card_sections(sealed.card)
    assert "sealed cannot be shown: it is not installed" in gone.text[0]
    assert ("  duplicates", "0") in list(card.list_facts(sealed.card))
    found = write_report(tmp_path / "report.html", sealed.id, tmp_path)
    assert found.ok and "cannot be shown" in (tmp_path / "report.html").read_text()


def test_a_mechanism_that_cannot_read_its_card_spoils_no_report(sealed, tmp_path):
    older = {name: value for name, value in sealed.card.items() if name != "seal"}
    [section] = sections.load_card_sections(older)
    assert "cannot be shown: KeyError" in section.text[0]

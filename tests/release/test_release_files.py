"""Releases with directories: every file of them is hashed, verified, delivered and backed up.

What a base model learned from, by the cards of directories.

What mechanisms say of themselves: cards and reports know none of them by name.
"""

import json
import os
import subprocess
from typing import Any

import pytest
from support.doors import install
from support.gated import CODE, Gates, labels
from support.preferences import TABLE, files

import labelguard as lg
from labelguard.errors import LabelguardError, ProjectError
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.ledger import Ledger
from labelguard.project import backup, restore
from labelguard.project.project import Project
from labelguard.release import card, sections
from labelguard.release.model_card import LearnedRelease, find_learned_releases, front_matter
from labelguard.release.writer import copy_release
from labelguard.report import overview
from labelguard.report.page import report, write_report
from labelguard.report.render import render_html, render_markdown
from labelguard.storage.files import SUMS, find_changed_file, hash_files

CEILING = 60

WEIGHTS = "model/weights/theta.bin"


@pytest.fixture
def made(project, tmp_path, monkeypatch):
    gates = Gates.install(tmp_path, monkeypatch)
    output = tmp_path / "out"
    return lg.privatize(labels(), project=project, output=output, **gates.options)


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
    made = lg.privatize(labels(), project=project, output=output, **gates.options)
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

MECHANISM = """
from dataclasses import dataclass, replace
from typing import ClassVar


@dataclass(frozen=True)
class door:
    mechanism: ClassVar[str] = "sealed_part:open_mechanism"
    report: ClassVar[str] = "sealed_part:describe"


def open_mechanism(options):
    from labelguard.release.mechanisms.rr import RandomizedResponse

    class Sealed(RandomizedResponse):
        name, version = "sealed", 1

        def finish(self, job, prepared, grant):
            made = super().finish(job, prepared, grant)
            return replace(made, card={**made.card, "seal": {"wax": "red <b>"}})

    return Sealed()


def describe(card):
    from labelguard.release.sections import Chart, Section, Series, Table

    yield Section(
        "seal",
        "The seal of this release",
        ("It is sealed with wax.",),
        Table("Seals", ("seal", "wax"), ((1, card["seal"]["wax"]),)),
        Chart("Wax", "One seal.", "bars", ("red",), "wax", "seals", (Series("seals", (1,)),)),
        facts=(("wax", card["seal"]["wax"]), ("  duplicates", "none to speak of")),
    )
"""


@pytest.fixture
def sealed(tmp_path, monkeypatch):
    """A release by a mechanism of another package."""
    install(tmp_path / "site", "labelguard.mechanisms", "sealed", MECHANISM, monkeypatch)
    return lg.privatize(TABLE, project=lg.init(tmp_path), mechanism="sealed", **BUDGET)


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

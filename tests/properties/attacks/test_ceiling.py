"""Budgets that protect nobody: by one price, by many, by what is asked for and not given."""

import pytest
from click.testing import CliRunner
from support.codings import OPTION
from support.commands import FIRST
from support.databases import dump
from support.preferences import ASKED, TABLE, spent, write

from labelguard.cli.main import main
from labelguard.report import overview


@pytest.fixture
def run(project, tmp_path, monkeypatch):
    """Runs a command in a project; labels.parquet holds 4 labelers, more.parquet 3 others too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABELGUARD_PROJECT", str(project.state))
    write(TABLE, tmp_path / "more.parquet")
    write(TABLE.filter(ASKED.labeler < 4), tmp_path / "labels.parquet")

    def command(text):
        asked = text.split()
        first = [asked[0]] if asked[0] != "privatize" else ["privatize", *FIRST, *OPTION]
        named = {"privatize", "--mechanism"} & set(asked) == {"privatize"}
        by = ["--mechanism", "rr"] if named else []
        return CliRunner().invoke(main, [*first, *by, *asked[1:]])

    return command


def check_refused(result, *told):
    """It ended with one line that says so, and with nothing else."""
    assert result.exit_code == 1 and not result.stdout
    assert len(result.stderr.splitlines()) == 1
    assert all(text in result.stderr for text in told), result.stderr


def test_a_price_that_protects_nobody_is_refused(run, project):
    check_refused(
        run("privatize labels.parquet --epsilon 1000 --delta .2"), "ceiling", "--raise 1000,0.2"
    )
    check_refused(run("privatize labels.parquet --epsilon 11 --delta 1e-5"), "ceiling")
    check_refused(run("privatize labels.parquet --epsilon 3 --delta 2e-4"), "ceiling")
    assert overview.list_releases(project.state) == [] and spent(project) == 0


def test_policies_one_after_another_do_not_pass_the_ceiling(run, project):
    for number in range(3):
        assert (
            run(f"policy new p{number} --epsilon 3 --delta 1e-5 --allow rr:uses=1").exit_code == 0
        )
        assert run(f"policy activate p{number} --yes").exit_code == 0
    assert run("policy new p3 --epsilon 3 --delta 1e-5 --allow rr:uses=1").exit_code == 0
    before = dump(project.ledger_url)
    check_refused(run("policy activate p3 --yes"), "ε = 12", "ceiling", "--raise 12,")
    assert dump(project.ledger_url) == before
    assert overview.read_budget(project.state).lifetime.epsilon == 9


@pytest.mark.quick("labels---epsilon 1 --delta 1e-5")
@pytest.mark.parametrize("options", ["--epsilon 1 --delta 1e-5", "--epsilon 3 --delta 1e-6"])
@pytest.mark.parametrize("file", ["labels", "more"])
def test_a_stricter_price_is_never_answered_with_a_looser_one(file, options, run, project):
    """Neither for new labels, nor for a release that was made before and costs nothing."""
    assert run("privatize labels.parquet --epsilon 3 --delta 1e-5").exit_code == 0
    before = overview.read_journal(project.state)[-1]
    check_refused(run(f"privatize {file}.parquet {options}"), "stricter")
    assert overview.read_journal(project.state)[-1] == before


@pytest.mark.quick("epsilon-nan-rr", "epsilon-0-auto", "delta-1-rr")
@pytest.mark.parametrize(
    ("name", "value", "mechanism"),
    [
        *(("epsilon", value, by) for value in ("-1", "0", "nan", "inf") for by in ("rr", "auto")),
        *(("delta", value, "rr") for value in ("1", "-1e-9", "nan", "inf")),
    ],
)
def test_a_budget_that_is_none_is_an_error_whatever_the_policy_says(name, value, mechanism, run):
    price = {"epsilon": "3", "delta": "1e-5", "mechanism": mechanism, name: value}
    options = " ".join(f"--{option} {number}" for option, number in price.items())
    check_refused(run(f"privatize labels.parquet {options}"), f"{name} must be")
    assert run("privatize labels.parquet --epsilon 3 --delta 1e-5").exit_code == 0
    check_refused(run(f"privatize labels.parquet {options}"), f"{name} must be")


def test_a_delta_that_allows_giving_one_labeler_away_needs_consent(run, project):
    assert run("project ceiling --raise 10,.9 --yes").exit_code == 0
    told = "privatize labels.parquet --epsilon 3 --delta .25"
    check_refused(run(told), "--accept-delta")
    assert spent(project) == 0
    result = run(f"{told} --accept-delta")
    assert result.exit_code == 0 and "note: delta 0.25 is not below 1/4" in result.stderr
    assert run(told).exit_code == 0  # the same release: it was accepted, and costs nothing


def test_nor_does_it_go_unsaid_where_labelers_come_one_by_one(run, tmp_path):
    assert run("project ceiling --raise 10,.9 --yes").exit_code == 0
    results = []
    for number in range(4):
        write(TABLE.filter(ASKED.labeler == number), tmp_path / "one.parquet")
        results.append(run("privatize one.parquet --epsilon 3 --delta .3"))
    assert [result.exit_code for result in results] == [0, 0, 0, 1]
    assert "not below 1/4" in results[-1].stderr

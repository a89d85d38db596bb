"""A command loads what it needs: loading is most of the time of a small one."""

import pytest
from support.commands import run_without

# Loads what is only for other mechanisms, inputs or outputs.
ELSEWHERE = {"scipy", "polars", "sklearn", "matplotlib", "dp_accounting", "torch", "httpx"}
ELSEWHERE |= {"sqlalchemy.dialects.postgresql"}


def run(without, *arguments):
    done = run_without(without, *arguments)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A project with one release, made from a CSV file by a command that loads little."""
    home = tmp_path_factory.mktemp("loading") / "study"
    labels = home.with_name("labels.csv")
    rows = [f"worker-{i % 3},prompt {i},one {i},other {i}" for i in range(30)]
    labels.write_text("\n".join(["labeler_id,prompt,chosen,rejected", *rows]))
    run(ELSEWHERE, "init", home)
    budget = ("--epsilon", 3, "--delta", 1e-5, "--once", "--yes", "--accept-little-use")
    run(
        ELSEWHERE - {"polars"}, "privatize", labels, "--project", home, "--mechanism", "rr", *budget
    )
    return home


@pytest.mark.quick("people list")
@pytest.mark.parametrize("command", ["budget show", "release list", "people list", "policy show"])
def test_what_only_asks_the_ledger_loads_no_engine(study, command):
    run({*ELSEWHERE, "duckdb", "jinja2"}, *command.split(), "--project", study)

"""The options of `privatize` are declared once: what is made of them has each.

Labels are read once their charge is there to stay, and not before.

What a card says of two units together.

`labelguard plan` without an input is about what was ingested, and reads no answer.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from support.commands import run
from support.leaving import labels_table
from support.lives import PRICE, TABLE, put_into_force
from support.releases import make_release
from support.tools import connected, deliver

import labelguard as lg
from labelguard.accounting import collusion
from labelguard.accounting.components import RandomizedBlocks
from labelguard.budget.request import PolicyRequest
from labelguard.errors import PolicyError
from labelguard.ledger.ledger import Ledger
from labelguard.options import ReadingOptions, RunOptions, option_declarations
from labelguard.project.ingestion import ingest
from labelguard.release.card import round_up_epsilon
from labelguard.release.mechanisms import AUTO, collect_options, list_mechanisms
from labelguard.release.request import Keywords, Ours, request_release
from labelguard.storage import buckets

ROOT = Path(__file__).parents[2]
ADDED = """
    colour: str | None = option("Which colour.", choices=("red", "blue"), in_jobs=True)
"""
EVERYWHERE = """
import runpy
from click.testing import CliRunner
import labelguard as lg
from labelguard.cli.main import main
from labelguard.jobs import settings

assert lg.__file__.startswith({copy!r}), lg.__file__
shown = CliRunner().invoke(main, ["privatize", "--help"]).stdout
print("help", "--colour [red|blue]" in shown)
schema = settings.build_job_schema()["$defs"]["ReleaseSettings"]
options = schema["properties"]["options"]["properties"]
print("job.yaml", "red" in str(options["colour"]))
for colour in ("red", "green"):
    try:
        lg.privatize([], mechanism="rr", colour=colour, once=True, project={project!r})
    except lg.errors.PolicyError as error:
        print("Python refuses", colour, "--colour" in str(error))
    except lg.errors.InvalidLabels:
        print("Python takes", colour)
runpy.run_path({docs!r}, run_name="__main__")
"""


@pytest.mark.slow
def test_an_option_added_to_one_class_is_everywhere(tmp_path):
    for package in ("labelguard", "docs"):
        leave = shutil.ignore_patterns("*.png", "*.svg")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=leave)
    source = tmp_path / "labelguard/options.py"
    text = source.read_text(encoding="utf-8")
    head = "    columns: Mapping[str, str] = option("  # the first of `ReadingOptions`
    assert text.count(head) == 1
    source.write_text(text.replace(head, ADDED + head), encoding="utf-8")
    lg.init(tmp_path / "study")
    script = EVERYWHERE.format(
        copy=str(tmp_path),
        project=str(tmp_path / "study"),
        docs=str(tmp_path / "docs/generate_cli.py"),
    )
    path = [str(tmp_path), str(ROOT / "connectors"), str(ROOT / "trainer")]
    begun = f"import sys; sys.path[:0] = {path!r}\n"
    command = [sys.executable, "-c", begun + script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:4] == [
        *("help True", "job.yaml True", "Python takes red", "Python refuses green True")
    ]
    assert "--colour" in (tmp_path / "docs/cli.md").read_text(encoding="utf-8")


def test_type_checkers_know_all_that_is_declared():
    kinds = (PolicyRequest, ReadingOptions, RunOptions)
    expected = {name for kind in kinds for name in option_declarations(kind)} | set(
        collect_options()
    )
    assert set(Keywords.__annotations__) == {
        *expected,
        "labeler_column",
        "no_prompt",
        "reading",
    }  # in columns
    assert set(get_args(Ours)) == {AUTO, *list_mechanisms()}


@pytest.mark.parametrize("option", ["ball", "sampling", "event"])
def test_what_the_planner_decides_cannot_be_asked_for(option, tmp_path):
    with pytest.raises(PolicyError, match=option):
        request_release(lg.init(tmp_path), "statistic", {option: 4})


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 0},
        {"uses": 0},
        {"bad_rows": "keep"},
        {"exhausted": "ask"},
        *({"once": True, "uses": 2}, {"workers": "3"}, {"uses": True}, {"ridge": "1"}),
    ],
)
def test_a_value_out_of_range_is_refused_before_anything_is_read(wrong, tmp_path):
    with pytest.raises(PolicyError, match=next(iter(wrong)).replace("_", "-")):
        request_release(lg.init(tmp_path), "auto", wrong)


def test_a_release_is_charged_and_marked_before_a_label_is_read(project, monkeypatch):
    seen: list[str] = []

    def watch(owner, name, counts=lambda given: True):
        done = getattr(owner, name)

        def watched(*given, **options):
            found = done(*given, **options)
            if counts(given):
                seen.append(name)
            return found

        monkeypatch.setattr(owner, name, watched)

    for act in ("begin_job", "charge", "mark_reading", "mark_drawn"):
        watch(Ledger, act)
    watch(buckets, "read_column", lambda given: given[1] == "label")
    make_release(TABLE.slice(0, 20), **PRICE, project=project)
    told = seen[seen.index("begin_job") :]  # it was staged before, in an order of its own
    assert list(dict.fromkeys(told)) == [
        "begin_job",
        "charge",
        "mark_reading",
        "read_column",
        "mark_drawn",
    ]


ALONE = collusion.epsilon([RandomizedBlocks.calibrate(3, 1e-5, 12)], 1e-5)


@pytest.mark.parametrize("own", [True, False], ids=["own numbers", "an allowance"])
def test_a_card_states_the_price_of_two(own, project):
    if not own:
        put_into_force(project, "first", "rr:uses=12,block=1")
    more = PRICE | {"workers": 1} if own else {"workers": 1}
    made = make_release(labels_table(), project=project, **more)
    found = json.loads((made.path / "card.json").read_text())["privacy"]["two_units"]
    assert found == made.card["privacy"]["two_units"]
    assert found["delta"] == 1e-5 and 3 < found["epsilon"] < 6
    assert own or found["epsilon"] == ALONE
    text = (made.path / "CARD.md").read_text()
    assert "two labelers may change together" in text
    assert f"ε = {round_up_epsilon(found['epsilon'])}" in text


def test_a_price_in_words_is_never_less_than_it_is():
    assert [round_up_epsilon(one) for one in (6.7061, 6.0, 4.531)] == ["6.71", "6", "4.54"]


PLAN = ("plan", "--features", "length", "--epsilons", "3", "--json")


@pytest.fixture
def tool(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return connected(lg.init(tmp_path), tmp_path, monkeypatch)


def run_plan(*words):
    return json.loads(run(*PLAN, *words).stdout)


@pytest.mark.slow
def test_what_was_ingested_is_planned_for(tool):
    project, desk = tool
    told = [desk.answer(f"labeler {n}", task, "left") for n in range(3) for task in range(12)]
    deliver(project, *told)
    ingest(project=project)
    found = run_plan()
    assert found["counts"] == {"labelers": 3, "labels": 36, "pairs": 12}
    assert "--source" not in json.dumps(found["recommended"])
    named = run_plan("--source", "desk")
    assert named["forecasts"] == found["forecasts"]
    # The same answers turned around: the same plan, and nothing of them stays open.
    deliver(project, *(desk.change(record, "right") for record in list(desk.records)))
    ingest(project=project)
    assert run_plan() == found
    assert not (project.state / "work").exists()


def test_without_an_input_there_has_to_be_something(tool, tmp_path, monkeypatch):
    assert "nothing was ingested" in run(*PLAN, code=2).output
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir("/")
    monkeypatch.setenv("LABELGUARD_PROJECT", str(empty))
    assert "no INPUT was given, and" in run(*PLAN, code=2).output

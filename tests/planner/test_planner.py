"""`labelguard plan`: forecasts that no label can change, as text, JSON, PNG and HTML."""

import json
import math
import re
import shlex
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.codings import NUMBERS, OPTION
from support.commands import FIRST, PRIVATIZE, run

import labelguard as lg
from labelguard.budget.policy import choose_usual_delta
from labelguard.cli.main import Main
from labelguard.cli.plan import plan as command
from labelguard.errors import InvalidLabels, PolicyError
from labelguard.planner import advice
from labelguard.planner import forecast as planner
from labelguard.planner.advice import describe_input
from labelguard.planner.outcomes import Forecast, Interval
from labelguard.simulation import simulate

OPTIONS: dict[str, Any] = {"epsilons": (1, 8), "features": "length", "label_values": NUMBERS}


@pytest.fixture(scope="module")
def labels():
    """Simulated labels in the layout of pairs."""
    return simulate(labelers=30, labels=900, items=200, seed=3)


@pytest.fixture(scope="module")
def source(labels, tmp_path_factory):
    """These labels in a file."""
    path = tmp_path_factory.mktemp("plans") / "labels.parquet"
    pq.write_table(labels, path)
    return path


def call(*arguments):
    return CliRunner().invoke(
        Main(commands={"plan": command}), ["plan", *OPTION, *map(str, arguments)]
    )


@pytest.mark.slow
def test_a_plan_by_processes_prints_what_a_plan_prints(labels, tmp_path):
    for name, rows in (("a", labels.slice(0, 450)), ("b", labels.slice(450))):
        pq.write_table(rows, tmp_path / f"{name}.parquet")
    where = (tmp_path / "a.parquet", tmp_path / "b.parquet", "--features", "length")
    here = call(*where, "--epsilons", "3")
    engine = ("--engine", "processes", "--workers", "2", "--buckets", "32")
    there = call(*where, "--epsilons", "3", *engine)
    assert here.exit_code == there.exit_code == 0 and "no label was read" in here.stdout
    assert (here.stdout, here.stderr) == (there.stdout, there.stderr)


def test_a_plan_is_the_same_with_other_labels_and_without_any(labels, tmp_path):
    place = labels.column_names.index("label")
    inverted = labels.set_column(place, "label", pc.subtract(1.0, labels["label"]))
    nonsense = labels.set_column(place, "label", pa.array(["?"] * len(labels)))
    bare = labels.drop_columns(["label", "tie"])
    outputs = []
    for table in (labels, inverted, nonsense, bare):
        pq.write_table(table, tmp_path / "labels.parquet")
        found = call(
            *(tmp_path / "labels.parquet", "--features", "length", "--epsilons", "1"),
            *("-o", tmp_path / "plan"),
        )
        assert found.exit_code == 0, found.output
        files = [(tmp_path / "plan" / name).read_bytes() for name in _FILES]
        outputs.append((found.output, files))
    assert outputs == outputs[:1] * 4


def numbered(first, second):
    """900 pairs of responses without a word, of 30 labelers."""
    return pa.table(
        {
            "labeler_id": [f"w{row % 30}" for row in range(900)],
            "prompt": [f"question {row // 3}" for row in range(900)],
            "response_a": [first(row // 3) for row in range(900)],
            "response_b": [second(row // 3) for row in range(900)],
            "label": [row % 2 for row in range(900)],
        }
    )


def test_without_named_features_those_that_tell_no_pair_apart_are_left_out(monkeypatch):
    monkeypatch.setattr(planner, "default_features", lambda: "length+text")
    table = numbered(lambda item: "7 " * (1 + item % 5), lambda item: "8 " * (1 + item % 3))
    found = planner.plan(table, label_values=NUMBERS, epsilons=(3,))
    assert found.features == "length" and {"rr"} < {one.mechanism for one in found.forecasts}
    assert "apart: text" in found.notes[0]
    with pytest.raises(InvalidLabels, match="no response holds a word"):
        planner.plan(table, label_values=NUMBERS, epsilons=(3,), features="length+text")


def test_where_no_default_feature_tells_pairs_apart_randomized_response_is_planned(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(planner, "default_features", lambda: "length+text")
    table, source = numbered(lambda _: "7", lambda _: "8"), tmp_path / "labels.parquet"
    pq.write_table(table, source)
    found = call(source, "--all", "-o", tmp_path / "plan")
    assert found.exit_code == 0, found.output
    assert "(length, text)" in found.stderr and "--features columns:NAME" in found.stderr
    assert "features none" in found.stdout and "statistic" not in found.stdout
    words = re.sub(r"\s+", " ", found.stdout)
    assert "Recommended: ε = 3: randomized response; about 39 of 100 released" in words
    assert "Not known: without features" in words and " *" not in words.partition("* what")[0]
    [released] = re.findall("^Next: labelguard (.*)$", call(source).stdout, re.MULTILINE)
    run(*shlex.split(released), "--yes", "--dry-run", project=lg.init(tmp_path / "project"))


@pytest.mark.parametrize("column", ["label", "nothing", "prompts"])
def test_a_plan_checks_public_columns_as_a_release_does(column, source, tmp_path):
    read = (source, "--public-column", column)
    released = run(*PRIVATIZE, *read, "--epsilon", "3", code=1, project=lg.init(tmp_path))
    planned = call(*read, "--features", "length")
    assert planned.exit_code == 1 and planned.stdout == ""
    assert planned.stderr == released.stderr and "--public-column" in planned.stderr


_FILES = ("plan.html", "accuracy.png", "plan.json")


@pytest.mark.slow
def test_a_plan_is_the_same_whichever_side_was_chosen(labels):
    names = ["labeler_id", "prompt", "chosen", "rejected"]
    sides = ["response_a", "response_b"]
    one, other = (
        labels.select(["labeler_id", "prompt", *order]).rename_columns(names)
        for order in (sides, sides[::-1])
    )
    first, second = (planner.plan(table, **OPTIONS) for table in (one, other))
    assert first == second


@pytest.mark.slow
def test_the_page_and_the_picture_stand_alone(source, tmp_path):
    found = call(source, "--features", "length", "--epsilons", "1,8", "-o", tmp_path / "plan")
    assert found.exit_code == 0, found.output
    assert "no label was read" in found.output
    assert (tmp_path / "plan" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "plan" / "plan.html").read_text(encoding="utf-8")
    assert 'src="data:image/png;base64,' in page
    assert not re.search(r"https?://|<script|<link|url\(", page)
    assert 'name="viewport"' in page and '<div class="scroll"' in page  # for telephones
    assert "labelguard privatize" in page


def test_json_holds_forecasts_counts_and_the_recommended_command(labels, tmp_path):
    source = tmp_path / "my labels.parquet"
    pq.write_table(labels.rename_columns({"labeler_id": "worker"}), source)
    found = call(
        *(source, "--features", "length", "--epsilons", "8,1", "--json"),
        *("--columns", "labeler_id=worker"),
    )
    assert found.exit_code == 0, found.output
    value = json.loads(found.stdout)
    assert value["counts"]["labelers"] == 30
    assert [entry["epsilon"] for entry in value["recommended"]] == [1, 8]
    forecast = value["forecasts"][1]
    assert forecast["mechanism"] == "statistic" and forecast["shape"]["components"] == 1
    for entry in value["recommended"]:
        assert entry["mechanism"] == entry["automatic"]
        assert f"privatize '{source}' --mechanism {entry['mechanism']}" in entry["command"]
        assert f"--epsilon {entry['epsilon']:g} --delta 1e-05" in entry["command"]
        assert "--columns labeler_id=worker" in entry["command"]


def test_contents_can_be_planned_without_labelers(labels):
    bare = labels.drop_columns(["labeler_id", "label", "tie"])
    counts = planner.plan(bare, epsilons=(1,), features="length", unit="item").counts
    assert counts.labels == 900 and counts.labelers == len(set(bare["prompt"].to_pylist()))
    with pytest.raises(InvalidLabels, match="no column labeler_id"):
        planner.plan(bare, **OPTIONS)


def test_the_bound_of_randomized_response_can_be_fixed(labels):
    found = planner.plan(labels, **OPTIONS, max_labels_per_labeler=4)
    assert {f.max_labels_per_labeler for f in found.forecasts if f.flip_probability} == {4}


def test_one_release_is_recommended_with_its_command_or_one_at_every_epsilon(source):
    found = call(source, "--features", "length", "--epsilons", "8,30", "--all")
    commands = re.findall(r"labelguard privatize .*--epsilon (\d+) ", found.stdout)
    assert commands == ["8", "30"] and "non-private improvement over chance; about" in found.stdout
    found = call(source, "--features", "length", "--epsilons", "8,30")
    [command] = re.findall(r"labelguard privatize (.*)", found.stdout)
    assert "--epsilon 8 " in command and "--once" in command  # 30 gains next to nothing
    assert len(found.stdout.splitlines()) == 5 and not found.stderr
    assert re.search(r"beats a coin from ε = [\d.]+ on", found.stdout)


@pytest.mark.slow
def test_the_next_command_runs_as_it_stands(source, tmp_path):
    options: dict[str, Any] = OPTIONS | {"epsilons": (8,), "uses": 2}
    [recommended] = planner.plan(str(source), **options).recommended
    assert recommended.command
    program, *words = shlex.split(recommended.command)
    assert program == "labelguard" and recommended.releases == 2 and "--uses" in words
    for arguments in (["init", str(tmp_path)], [*words[:-1], str(tmp_path / "release")]):
        # At a terminal a first release asks; here nobody answers.
        place = ["--project", str(tmp_path), *FIRST[1:]] if arguments[0] == "privatize" else []
        run(*arguments, *place)


def test_nothing_is_recommended_where_a_coin_might_do_as_well(tmp_path):
    source = tmp_path / "labels.parquet"
    pq.write_table(simulate(labelers=24, labels=100, items=60, seed=1), source)
    found = call(source, "--features", "length", "--epsilons", "0.02")
    assert found.exit_code == 0, found.output
    assert "Nothing is recommended; at best a model is right about" in found.stdout
    assert re.search(r"beats a coin from ε = [\d.]+ on", found.stdout)
    assert "labelguard privatize" not in found.stdout
    assert "what would help: a larger ε" in found.stderr


def test_nothing_is_recommended_for_fewer_than_twenty_labelers():
    table = simulate(labelers=19, labels=300, items=100, seed=1)
    found = planner.plan(table, **OPTIONS | {"epsilons": (1.0, 50.0)})
    assert [(one.mechanism, one.command) for one in found.recommended] == [(None, None)] * 2
    assert all("for 19 labelers" in one.words for one in found.recommended)
    assert all(one.automatic in ("rr", "props", "statistic") for one in found.recommended)
    assert "20 labelers or more" in found.notes[0]
    assert found.epsilon is None and found.worth.units == 20
    sure = Forecast("rr", 1.0, Interval(0.7, 0.68, 0.72), Interval(0.3, 0.2, 0.4))
    assert advice.is_worth_it(sure, 20) and not advice.is_worth_it(sure, 19)


def test_delta_and_features_are_the_usual_ones_unless_said(labels, monkeypatch):
    monkeypatch.setattr(planner, "default_features", lambda: "length")  # no encoder is loaded
    found = planner.plan(labels, label_values=NUMBERS, epsilons=(1,))
    assert (found.delta, found.features) == (choose_usual_delta(30), "length")
    assert describe_input(found).startswith("30 labelers, 900 labels of ")
    assert describe_input(found).endswith("δ = 1e-05 for each labeler; features length")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "team"}, "unit"),
        ({"max_labels_per_labeler": 0}, "max-labels-per-labeler must be at least 1, found 0"),
        ({"bad_rows": "none"}, "bad_rows"),
        ({"uses": 0}, "uses"),
        ({"epsilons": ()}, "at least one epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"agreement": 0.4}, "agreement"),
        ({"unit": "item", "uses": 2}, "labeled in one period"),
    ],
)
def test_options_are_checked_before_anything_is_read(options, message):
    with pytest.raises(PolicyError, match=message):
        planner.plan("nowhere.parquet", **options)


@pytest.mark.parametrize(
    ("option", "value"), [("--epsilons", "1,two"), ("--features", "nothing"), ("--for", "1y")]
)
def test_a_refusal_is_one_line(source, option, value):
    found = call(source, option, value)
    assert found.exit_code == 1 and not found.stdout
    assert found.stderr.count("\n") == 1 and value.split(",")[-1] in found.stderr


def test_a_single_row_is_forecast_too(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("prompt,response_a,response_b,labeler_id\np,aa,bbb,u\n", encoding="utf-8")
    found = planner.plan(str(path), epsilons=(1.0,), features="length")
    assert all(math.isfinite(forecast.label_error.mean) for forecast in found.forecasts)

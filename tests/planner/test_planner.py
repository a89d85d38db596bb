"""`labelguard plan`: forecasts that no label can change, as text, JSON, PNG and HTML."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from support.commands import FIRST

from labelguard.cli.main import Main, main
from labelguard.cli.plan import plan as command
from labelguard.errors import InvalidLabels, PolicyError
from labelguard.planner import advice
from labelguard.planner import forecast as planner
from labelguard.planner.outcomes import Forecast, Interval, Sizing
from labelguard.planner.page import headline
from labelguard.policy.policy import usual_delta
from labelguard.simulation import simulate

OPTIONS: dict[str, Any] = {"epsilons": (1, 8), "features": "length"}


@pytest.fixture(scope="module")
def labels() -> pa.Table:
    """Simulated labels in the layout of pairs."""
    return simulate(labelers=30, labels=900, items=200, seed=3)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(Main(commands={"plan": command}), ["plan", *map(str, arguments)])


def test_a_plan_is_the_same_with_other_labels_and_without_any(
    labels: pa.Table, tmp_path: Path
) -> None:
    inverted = labels.set_column(
        labels.column_names.index("label"), "label", pc.subtract(1.0, labels["label"])
    )
    nonsense = labels.set_column(
        labels.column_names.index("label"), "label", pa.array(["?"] * len(labels))
    )
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


_FILES = ("plan.html", "accuracy.png", "plan.json")


@pytest.mark.slow
def test_a_plan_is_the_same_whichever_side_was_chosen(labels: pa.Table) -> None:
    names = ["labeler_id", "prompt", "chosen", "rejected"]
    sides = ["response_a", "response_b"]
    one, other = (
        labels.select(["labeler_id", "prompt", *order]).rename_columns(names)
        for order in (sides, sides[::-1])
    )
    first, second = (planner.plan(table, **OPTIONS) for table in (one, other))
    assert first == second


def test_the_page_and_the_picture_stand_alone(labels: pa.Table, tmp_path: Path) -> None:
    source = tmp_path / "labels.parquet"
    pq.write_table(labels, source)
    found = call(source, "--features", "length", "--epsilons", "1,8", "-o", tmp_path / "plan")
    assert found.exit_code == 0, found.output
    assert "no label was read" in found.output
    assert (tmp_path / "plan" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "plan" / "plan.html").read_text(encoding="utf-8")
    assert 'src="data:image/png;base64,' in page
    assert not re.search(r"https?://|<script|<link|url\(", page)
    assert 'name="viewport"' in page and '<div class="scroll"' in page  # for telephones
    assert "labelguard privatize" in page


def test_json_holds_forecasts_counts_and_the_recommended_command(
    labels: pa.Table, tmp_path: Path
) -> None:
    source = tmp_path / "my labels.parquet"
    pq.write_table(labels.rename_columns({"labeler_id": "worker"}), source)
    found = call(
        *(source, "--features", "length", "--epsilons", "8,1", "--json"),
        *("--columns", "labeler_id=worker"),
    )
    assert found.exit_code == 0, found.output
    value = json.loads(found.stdout)
    assert list(value) == [
        *("adjacency", "delta", "features", "agreement", "unit", "periods", "counts"),
        *("forecasts", "recommended", "epsilon", "worth", "notes"),
    ]
    assert value["counts"]["labelers"] == 30
    assert [entry["epsilon"] for entry in value["recommended"]] == [1, 8]
    forecast = value["forecasts"][1]
    assert forecast["mechanism"] == "statistic" and forecast["shape"]["components"] == 1
    assert set(forecast["accuracy"]) == {"mean", "low", "high"}
    for entry in value["recommended"]:
        assert entry["mechanism"] == entry["automatic"]
        assert f"privatize '{source}' --mechanism {entry['mechanism']}" in entry["command"]
        assert f"--epsilon {entry['epsilon']:g} --delta 1e-05" in entry["command"]
        assert "--columns labeler_id=worker" in entry["command"]


def test_contents_can_be_planned_without_labelers(labels: pa.Table) -> None:
    bare = labels.drop_columns(["labeler_id", "label", "tie"])
    counts = planner.plan(bare, epsilons=(1,), features="length", unit="item").counts
    assert counts.labels == 900 and counts.labelers == len(set(bare["prompt"].to_pylist()))
    with pytest.raises(InvalidLabels, match="no column labeler_id"):
        planner.plan(bare, **OPTIONS)


def test_the_bound_of_randomized_response_can_be_fixed(labels: pa.Table) -> None:
    found = planner.plan(labels, epsilons=1, features="length", max_labels_per_labeler=4)
    assert {f.max_labels_per_labeler for f in found.forecasts if f.flip_probability} == {4}


def test_one_line_an_epsilon_says_what_to_expect_and_how_to_get_it(
    labels: pa.Table, tmp_path: Path
) -> None:
    source = tmp_path / "labels.parquet"
    pq.write_table(labels, source)
    found = call(source, "--features", "length", "--epsilons", "8,30", "--all")
    for epsilon in (8, 30):
        assert re.search(
            rf"ε = {epsilon}: \w.*; a model gains over a coin about (\d+ of 100 of what "
            r"it would|as much as) without privacy; about \d+ of 100 released labels differ from "
            r"what labelers said",
            found.stdout,
        )
    commands = re.findall(r"labelguard privatize (.*)", found.stdout)
    assert [re.search(r"--epsilon (\d+)", one)[1] for one in commands] == ["8", "30"]  # type: ignore[index]


def test_one_release_is_recommended_with_its_command(labels: pa.Table, tmp_path: Path) -> None:
    source = tmp_path / "labels.parquet"
    pq.write_table(labels, source)
    found = call(source, "--features", "length", "--epsilons", "8,30")
    [command] = re.findall(r"labelguard privatize (.*)", found.stdout)
    assert "--epsilon 8 " in command and "--once" in command  # 30 gains next to nothing
    assert len(found.stdout.splitlines()) == 4 and not found.stderr
    assert re.search(r"beats a coin from ε = [\d.]+ on", found.stdout)


@pytest.mark.slow
def test_the_next_command_runs_as_it_stands(labels: pa.Table, tmp_path: Path) -> None:
    source = tmp_path / "labels.parquet"
    pq.write_table(labels, source)
    options: dict[str, Any] = {"epsilons": (8,), "features": "length", "periods": 2}
    [recommended] = planner.plan(str(source), **options).recommended
    assert recommended.command
    program, *words = shlex.split(recommended.command)
    assert program == "labelguard" and recommended.releases == 2 and "--uses" in words
    for arguments in (["init", str(tmp_path)], [*words[:-1], str(tmp_path / "release")]):
        # At a terminal a first release asks; here nobody answers.
        place = ["--project", str(tmp_path), *FIRST[1:]] if arguments[0] == "privatize" else []
        done = CliRunner().invoke(main, [*arguments, *place])
        assert done.exit_code == 0, done.output


def test_nothing_is_recommended_where_a_coin_might_do_as_well(tmp_path: Path) -> None:
    source = tmp_path / "labels.parquet"
    pq.write_table(simulate(labelers=24, labels=100, items=60, seed=1), source)
    found = call(source, "--features", "length", "--epsilons", "0.02")
    assert found.exit_code == 0, found.output
    assert "Nothing is recommended; at best a model is right about" in found.stdout
    assert re.search(r"beats a coin from ε = [\d.]+ on", found.stdout)
    assert "labelguard privatize" not in found.stdout
    assert re.search(
        r"too few labelers or labels for ε ≤ 0.02; what would help: a larger ε, more labelers "
        r"\(with twice as many a model is right about \d+ of 100",
        found.stderr,
    )


def test_nothing_is_recommended_for_fewer_than_twenty_labelers() -> None:
    table = simulate(labelers=19, labels=300, items=100, seed=1)
    found = planner.plan(table, epsilons=(1.0, 50.0), features="length")
    assert [(one.mechanism, one.command) for one in found.recommended] == [(None, None)] * 2
    assert {one.words for one in found.recommended} == {
        "ε = 1: nothing is recommended for 19 labelers",
        "ε = 50: nothing is recommended for 19 labelers",
    }
    assert all(one.automatic in ("rr", "props", "statistic") for one in found.recommended)
    [note] = found.notes
    assert note.startswith("19 labelers: ") and "20 labelers or more" in note
    assert found.epsilon is None and found.worth.units == 20


def test_delta_and_features_are_the_usual_ones_unless_said(
    labels: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "default_features", lambda: "length")  # no encoder is loaded
    found = planner.plan(labels, epsilons=(1,))
    assert (found.delta, found.features) == (usual_delta(30), "length")
    assert headline(found).startswith("30 labelers, 900 labels of ")
    assert headline(found).endswith("δ = 1e-05 for each labeler; features length")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epsilons", "1,two"), "--epsilons expects numbers like .5,1,3, found '1,two'"),
        (("--epsilons", ","), "expected at least one epsilon"),
        (("--epsilons", "-1"), "epsilon must be finite and above 0, found -1.0"),
        (("--delta", "0"), "delta must be at least 1e-300 and below 1, found 0.0"),
        (("--agreement", "0.4"), "agreement must be between 0.55 and 0.9, found 0.4"),
        (("--recurring", "weekly"), "give --recurring and --for together, or neither"),
        (("--recurring", "weekly", "--for", "1"), "--for expects a number of days, weeks, months"),
        (("--max-labels-per-labeler", "0"), "max-labels-per-labeler must be at least 1, found 0"),
        (("--features", "nothing"), "there are no features 'nothing'"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(
    labels: pa.Table, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    source = tmp_path / "labels.parquet"
    pq.write_table(labels, source)
    found = call(source, "--features", "length", *arguments)
    assert found.exit_code == 1
    assert message in found.stderr and found.stderr.count("\n") == 1
    assert not found.stdout


def test_options_are_checked_before_anything_is_read() -> None:
    with pytest.raises(PolicyError, match="unit must be labeler or item"):
        planner.plan("nowhere.parquet", unit="team")  # type: ignore[arg-type]


def test_a_single_row_is_forecast_too(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("prompt,response_a,response_b,labeler_id\np,aa,bbb,u\n", encoding="utf-8")
    found = planner.plan(str(path), epsilons=(1.0,), features="length")
    assert all(math.isfinite(forecast.label_error.mean) for forecast in found.forecasts)


@pytest.mark.slow
def test_words_and_plans_need_neither_torch_nor_the_trainer() -> None:
    command = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers', 'labelguard_trainer'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from labelguard.planner.forecast import plan\n"
        "from labelguard.simulation import simulate\n"
        "labels = simulate(labelers=5, labels=60, items=30)\n"
        "print(plan(labels, epsilons=(1,), features='text+length').recommended)"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(Recommendation(epsilon=1.0, mechanism=None, automatic=")


def _said(found: Forecast, plain: Forecast) -> str:
    sizing = Sizing.of(found, 1)
    return advice.advised(sizing, sizing.mechanism, plain, 50, "labeler", lambda _: "").words


def test_as_good_as_no_privacy_is_said_so() -> None:
    level = Interval(0.7, 0.68, 0.72)
    found = Forecast("statistic", 8.0, level, Interval(0.3, 0.2, 0.4))
    said = advice.advised(
        Sizing.of(found, 1), found.mechanism, found, 50, "labeler", lambda sizing: ""
    ).words
    assert "a model gains over a coin about as much as without privacy" in said


def test_what_a_bound_lets_in_is_said() -> None:
    plain = Forecast("non-private", None, Interval(0.7, 0.68, 0.72), Interval(0.3, 0.2, 0.4))
    found = Forecast(
        *("rr", 1.0, Interval(0.6, 0.55, 0.65), Interval(0.27, 0.27, 0.27)),
        max_labels_per_labeler=1,
        released=0.05,
    )
    said = advice.advised(
        Sizing.of(found, 1), found.mechanism, plain, 50, "labeler", lambda sizing: ""
    ).words
    assert said == (
        "ε = 1: randomized response; a model gains over a coin about 50 of 100 of what it would "
        "without privacy; about 27 of 100 released labels differ from what labelers said; 5 of 100 "
        "labels are released (at most 1 of each labeler)"
    )

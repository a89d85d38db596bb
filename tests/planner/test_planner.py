"""`labelguard plan`: forecasts that no label can change, as text, JSON, PNG and HTML."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from labelguard.cli.main import Main
from labelguard.cli.plan import plan as command
from labelguard.errors import InvalidLabels, PolicyError
from labelguard.planner import forecast as planner
from labelguard.planner.forecast import PlanOptions
from labelguard.simulation import SimulationConfig, simulate

OPTIONS = PlanOptions(epsilons=(1, 8), features="length")


@pytest.fixture(scope="module")
def labels() -> pa.Table:
    """Simulated labels in the layout of pairs."""
    return simulate(SimulationConfig(labelers=30, labels=900, items=200, seed=3))


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


def test_a_plan_is_the_same_whichever_side_was_chosen(labels: pa.Table) -> None:
    names = ["labeler_id", "prompt", "chosen", "rejected"]
    sides = ["response_a", "response_b"]
    one, other = (
        labels.select(["labeler_id", "prompt", *order]).rename_columns(names)
        for order in (sides, sides[::-1])
    )
    first, second = (planner.plan(table, OPTIONS) for table in (one, other))
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
        *("adjacency", "delta", "features", "agreement", "unit", "counts", "forecasts"),
        *("recommended", "epsilon", "command", "notes"),
    ]
    assert value["counts"]["labelers"] == 30
    assert [entry["epsilon"] for entry in value["recommended"]] == [1, 8]
    forecast = value["forecasts"][1]
    assert forecast["mechanism"] == "statistic" and forecast["shape"]["components"] == 1
    assert set(forecast["accuracy"]) == {"mean", "low", "high"}
    assert f"privatize '{source}' --mechanism" in value["command"]
    assert "--columns labeler_id=worker" in value["command"]


def test_contents_can_be_planned_without_labelers(labels: pa.Table) -> None:
    bare = labels.drop_columns(["labeler_id", "label", "tie"])
    options = PlanOptions(epsilons=(1,), features="length", unit="item")
    counts = planner.plan(bare, options).counts
    assert counts.labels == 900 and counts.labelers == len(set(bare["prompt"].to_pylist()))
    with pytest.raises(InvalidLabels, match="no column labeler_id"):
        planner.plan(bare, OPTIONS)


def test_the_bound_of_randomized_response_can_be_fixed(labels: pa.Table) -> None:
    options = PlanOptions(epsilons=(1,), features="length", max_labels_per_labeler=4)
    found = planner.plan(labels, options)
    assert {f.max_labels_per_labeler for f in found.forecasts if f.flip_probability} == {4}


def test_too_few_labelers_are_told_which_epsilon_would_serve(tmp_path: Path) -> None:
    table = simulate(SimulationConfig(labelers=3, labels=60, items=40, seed=1))
    source = tmp_path / "few.parquet"
    pq.write_table(table, source)
    found = call(source, "--features", "length", "--epsilons", "0.05")
    assert found.exit_code == 0, found.output
    assert re.search(r"too few labelers or labels for ε ≤ 0.05: .*; ε = \d+ would", found.stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epsilons", "1,two"), "--epsilons expects numbers like .5,1,3, found '1,two'"),
        (("--epsilons", ","), "expected at least one epsilon"),
        (("--epsilons", "-1"), "epsilon must be finite and above 0, found -1.0"),
        (("--delta", "0"), "delta must be at least 1e-300 and below 1, found 0.0"),
        (("--agreement", "0.4"), "agreement must be between 0.55 and 0.9, found 0.4"),
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
        PlanOptions(unit="team")


def test_a_single_row_is_forecast_too(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("prompt,response_a,response_b,labeler_id\np,aa,bbb,u\n", encoding="utf-8")
    found = planner.plan(str(path), PlanOptions(epsilons=(1.0,), features="length"))
    assert all(math.isfinite(forecast.label_error.mean) for forecast in found.forecasts)


def test_words_and_plans_need_neither_torch_nor_the_trainer() -> None:
    command = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers', 'labelguard_trainer'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "from labelguard.planner.forecast import PlanOptions, plan\n"
        "from labelguard.simulation import SimulationConfig, simulate\n"
        "labels = simulate(SimulationConfig(labelers=5, labels=60, items=30))\n"
        "print(plan(labels, PlanOptions(epsilons=(1,), features='text+length')).recommended)"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(Recommendation(epsilon=1.0, mechanism=")

"""The benchmarks that train language models, from texts to tables, with a handful of pairs."""

import importlib
import json
from pathlib import Path

import pytest

from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import block

pytestmark = pytest.mark.slow
BENCH = Path(__file__).resolve().parents[2] / "bench"
LABELS = {"clean", *(f"RR, {loss}" for loss in ("forward", "robust", "plain"))}
LABELS |= {"PROPS, hard", "PROPS, soft", "teacher"}
WAYS = {"no privacy", "statistic, soft", "uls"}
SCRIPTS = {"dpo_utility": ("labels", "--workers", "1"), "lora_utility": ("way",)}


@pytest.fixture(scope="module", params=SCRIPTS)
def tiny(request, tmp_path_factory):
    """What runs one of them, the kind of its runs, and the records of a run."""
    work, (kind, *always) = tmp_path_factory.mktemp("work"), SCRIPTS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        script = importlib.import_module(request.param)

    def run(*more):
        script.main(["--tiny", "--work", str(work), *always, *more])

    run()
    lines = (work / "tiny" / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    return run, kind, [json.loads(line) for line in lines]


def test_every_kind_is_trained_and_scored(tiny):
    _, kind, records = tiny
    assert {record[kind] for record in records} == (LABELS if kind == "labels" else WAYS)
    assert all(0 <= record["accuracy"] <= 1 for record in records)
    if kind == "labels":
        assert {record["steps"] for record in records if "steps" in record} == {3}
        return
    assert len({(record["preference"], record["way"]) for record in records}) == 2 * len(WAYS)
    noise = {record["way"]: record.get("noise_multiplier") for record in records}
    assert noise["uls"] > noise["no privacy"] == 0 and noise["statistic, soft"] is None


def test_what_is_finished_is_not_run_again_and_the_table_has_all_of_it(tiny, capsys):
    run, kind, _ = tiny
    run("--markdown")
    said = capsys.readouterr()
    assert not said.err
    cells = [line.removeprefix("| ").split(" | ") for line in said.out.splitlines()]
    if kind == "labels":
        assert {row[0] for row in cells} >= LABELS
        law = block(rr.threshold(rr.calibrate(1, 1e-5, 1)), 2)
        assert f"{law.flip_probability:.3f}" in said.out
    else:
        assert {row[2] for row in cells if len(row) == 4 and "12" in row[1]} >= WAYS

"""The benchmark bench/lora_utility.py from texts to tables, with a handful of pairs."""

import json

import pytest

pytestmark = pytest.mark.slow
SCRIPT = "lora_utility"
WAYS = {"no privacy", "statistic, soft", "uls"}


@pytest.fixture(scope="module")
def work(bench, tmp_path_factory):
    """The directory of a tiny run."""
    found = tmp_path_factory.mktemp("lora")
    bench.main(["--tiny", "--work", str(found)])
    return found


def test_every_way_learns_both_preferences(work):
    lines = (work / "tiny" / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert len({(record["preference"], record["way"]) for record in records}) == 2 * len(WAYS)
    assert all(0 <= record["accuracy"] <= 1 for record in records)
    noise = {record["way"]: record.get("noise_multiplier") for record in records}
    assert noise["uls"] > noise["no privacy"] == 0
    assert noise["statistic, soft"] is None


def test_what_is_finished_is_not_run_again_and_the_table_has_all_of_it(bench, work, capsys):
    bench.main(["--tiny", "--work", str(work), "--markdown"])
    said = capsys.readouterr()
    assert not said.err
    cells = [line.split(" | ") for line in said.out.splitlines() if line.startswith("| ")]
    assert {row[2] for row in cells if len(row) == 4 and "12" in row[1]} >= WAYS

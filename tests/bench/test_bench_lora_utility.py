"""The benchmark bench/lora_utility.py from texts to tables, with a handful of pairs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("trl")]
BENCH = Path(__file__).resolve().parents[2] / "bench"
WAYS = {"no privacy", "statistic, soft", "uls"}


@pytest.fixture(scope="module")
def harness() -> Iterator[ModuleType]:
    """The benchmark as a module, found the way its own directory finds it."""
    sys.path.insert(0, str(BENCH))
    try:
        import lora_utility

        yield lora_utility
    finally:
        sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def work(harness: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny run."""
    found = tmp_path_factory.mktemp("lora")
    harness.main(["--tiny", "--work", str(found)])
    return found


def test_every_way_learns_both_preferences(work: Path) -> None:
    lines = (work / "tiny" / "runs.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert len({(record["preference"], record["way"]) for record in records}) == 2 * len(WAYS)
    assert all(0 <= record["accuracy"] <= 1 for record in records)
    noise = {record["way"]: record.get("noise_multiplier") for record in records}
    assert noise["uls"] > noise["no privacy"] == 0
    assert noise["statistic, soft"] is None


def test_what_is_finished_is_not_run_again_and_the_table_has_all_of_it(
    harness: ModuleType, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harness.main(["--tiny", "--work", str(work), "--markdown"])
    said = capsys.readouterr()
    assert not said.err
    cells = [line.split(" | ") for line in said.out.splitlines() if line.startswith("| ")]
    assert {row[2] for row in cells if len(row) == 4 and "12" in row[1]} >= WAYS


def test_a_response_alone_says_nothing_of_the_second_preference(harness: ModuleType) -> None:
    """Neither a word, nor how varied they are, nor those of the prompt; of the first, words do."""
    from dpo import grammar
    from lora.runs import PREFERENCES

    words = grammar.vocabulary()

    def counts(texts: list[str]) -> np.ndarray:
        return np.array([[text.split().count(word) for word in words] for text in texts])

    best = {}
    for name, preference in PREFERENCES.items():
        pairs = grammar.pairs(1_500, 5, (3, 5), preference)
        first, second = counts(pairs.first), counts(pairs.second)
        asked = counts(pairs.prompt) * (np.array(words) != ".")
        features = np.column_stack(
            [
                first - second,
                (first > 0).sum(1) - (second > 0).sum(1),
                ((first > 0) & (asked > 0)).sum(1) - ((second > 0) & (asked > 0)).sum(1),
            ]
        ).astype(float)
        learned, judged = slice(0, 1_000), slice(1_000, None)
        said = np.sign(pairs.advantage)
        ridge = features[learned].T @ features[learned] + 100 * np.eye(features.shape[1])
        theta = np.linalg.solve(ridge, features[learned].T @ said[learned])
        some = said[judged] != 0
        agrees = np.sign(features[judged] @ theta)[some] == said[judged][some]
        best[name] = agrees.mean()
    alone, other = best["topic, in other words"], best["style and topic"]
    assert abs(alone - 0.5) < 0.1  # 4 deviations of 400 fair coins
    assert other > 0.7


def test_nobody_labels_a_pair_twice(harness: ModuleType) -> None:
    from dpo import grammar
    from lora.problem import Setup, labelled

    pairs = grammar.pairs(20, 1, (3, 5))
    found = labelled(Path(), Setup(each=10), pairs, pairs, 6, 0)
    assert np.bincount(found.pair).tolist() == [3] * 20
    assert all(len(set(found.pair[found.unit == unit])) == 10 for unit in range(6))
    with pytest.raises(ValueError, match="do not divide"):
        labelled(Path(), Setup(each=7), pairs, pairs, 6, 0)

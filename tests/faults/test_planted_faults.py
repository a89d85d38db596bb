"""The list of planted faults fits the code, and what plants them tells a fault from none."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from faults import run

FAULTS = run.faults()


def test_every_fault_can_be_planted_at_one_place(tmp_path):
    for fault in FAULTS:
        assert (run.ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) == 1, fault.name
    one = FAULTS[0]
    (tmp_path / one.file).parent.mkdir(parents=True)
    (tmp_path / one.file).write_text(f"{one.old}\n{one.old}\n", encoding="utf-8")
    with pytest.raises(ValueError, match="2 times"):
        one.plant(tmp_path)


def test_every_fault_names_tests_that_there_are():
    for fault in FAULTS:
        assert fault.tests, fault.name
        for test in fault.tests:
            file, _, name = test.partition("::")
            assert f"def {name or 'test_'}" in (run.ROOT / file).read_text(encoding="utf-8"), test


def test_faults_have_names_of_their_own():
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1


@pytest.mark.slow
def test_a_change_that_is_no_fault_is_not_caught_nor_one_whose_tests_are_slow():
    one, slow = (
        FAULTS[0],
        "test_a_change_that_is_no_fault_is_not_caught_nor_one_whose_tests_are_slow",
    )
    for fault, why in (
        (replace(one, new=f"{one.old}  # as it was"), "passed"),
        (replace(one, tests=(f"tests/faults/{Path(__file__).name}::{slow}",)), "deselected"),
        (replace(one, old="no such text"), "found 0 times"),
    ):
        noticed, how = run.caught(fault)
        assert not noticed and why in how

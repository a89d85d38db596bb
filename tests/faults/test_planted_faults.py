"""The list of planted faults fits the code, and what plants them tells a fault from none."""

from dataclasses import replace
from pathlib import Path

import pytest
from faults import run

FAULTS = run.faults()
SOURCE = '''
LIMIT = 3  # «é»

def count(rows):
    for row in rows:
        """Übergröße."""; total = max(
            row,  # the largest
            2 *LIMIT,
        )
        yield total
    return f"SELECT {rows}  -- {LIMIT}\\n  FROM t", LIMIT, LIMIT

class Sum:
    def count(self):
        return LIMIT + 1
'''


def _plant(old, new, function="count"):
    return run.Fault("a name", f"module:{function}", old, new, ()).plant(SOURCE)


def test_every_fault_applies():
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) == 62
    for fault in FAULTS:
        compile(fault.plant(fault.path().read_text(encoding="utf-8")), fault.name, "exec")


def test_every_fault_names_tests_that_there_are():
    for fault in FAULTS:
        assert fault.tests, fault.name
        for test in fault.tests:
            file, _, name = test.partition("::")
            assert f"def {name or 'test_'}" in (run.ROOT / file).read_text(encoding="utf-8"), test


def test_a_fault_is_planted_however_its_place_is_laid_out():
    assert "            LIMIT,\n        )" in _plant("2*LIMIT", "LIMIT")
    assert '"""; total = row\n        yield' in _plant("max(row, 2 * LIMIT)", "row")
    statements = "total = max(row,\n    2 * LIMIT)\nyield total"
    assert '"""; pass\n    return' in _plant(statements, "pass")
    planted = _plant("yield total", "total += 1\nif total:\n    yield total\n")
    assert "        total += 1\n        if total:\n            yield total\n    return" in planted
    assert "return LIMIT\n" in _plant("LIMIT + 1", "LIMIT", "Sum.count")
    assert "LIMIT = 4  # «é»" in _plant("3", "4", "")
    assert 'f"SELECT {rows} FROM t", L' in _plant("{rows} -- {LIMIT}\\n FROM", "{rows} FROM")
    page = run.Fault("a name", "pages/page.j2", "{% if  a %}", "{% if b %}", ())
    assert page.plant("é {% if\n a %}") == "é {% if b %}"


@pytest.mark.parametrize(
    ("old", "function", "why"),
    [
        ("LIMIT + 2", "Sum.count", "Sum.count has no such expression"),
        ("LIMIT", "count", "count has 4 such expressions"),
        ("LIMIT", "Sum.total", "module module has no function Sum.total"),
        ("total = 1\nyield total", "count", "count has no such expression"),
    ],
)
def test_what_is_not_there_once_is_no_place(old, function, why):
    with pytest.raises(run.NotThere, match=why):
        _plant(old, "0", function)


def test_a_fault_that_no_longer_applies_fails_after_the_others(monkeypatch, capsys):
    gone = [replace(FAULTS[0], at=at) for at in ("labelguard.elsewhere:f", "labelguard.errors:f")]
    monkeypatch.setattr(run, "faults", lambda: gone)
    assert run.main([]) == 1
    reasons = "there is no labelguard.elsewhere", "module labelguard.errors has no function f"
    lines = [f"no longer applies: {gone[0].name} ({why})" for why in reasons]
    assert capsys.readouterr().out.splitlines() == [*lines, "0 of 2 faults caught"]


@pytest.mark.slow
def test_a_change_that_is_no_fault_is_not_caught_nor_one_whose_tests_are_slow():
    one, this = FAULTS[0], f"tests/faults/{Path(__file__).name}"
    slow = f"{this}::test_a_change_that_is_no_fault_is_not_caught_nor_one_whose_tests_are_slow"
    for fault, outcome, why in (
        (replace(one, new=one.old), run.MISSED, "passed"),
        (replace(one, tests=(slow,)), run.MISSED, "deselected"),
        (replace(one, old="no_such_name"), run.GONE, "no such expression"),
    ):
        result, how = run.try_fault(fault)
        assert result == outcome and why in how

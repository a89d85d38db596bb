"""Commands killed at their steps, once or twice: the same command ends as if nothing had been."""

import random

import pytest
from support import databases
from support.crashes import SCENARIOS, assert_sound, crash, killed, rounds, seen
from support.rounds import MORE_ROUNDS, some

from labelguard.report import overview

SEED = 20260101


pytestmark = pytest.mark.usefixtures("same_in_every_process")


def attempt(ring, expected, *kill_at):
    """One round: the command is killed at these steps, one time after the other, then done.

    Answers the state of the newest release when it was killed first.
    """
    state = None
    label = f"killed at {' and '.join(map(str, kill_at))}"
    project, ledger = ring.copy(label)
    ring.choose(ledger)
    for time, step in enumerate(kill_at):
        if time and ring.is_done(project):
            break
        job = ring.command | {"project": str(project), "ledger": ledger, "kill_at": step}
        if time:
            assert crash(job)[0]["error"] == "", label  # it may come to its end before that step
        else:
            killed(job)
            releases = overview.list_releases(project)
            state = releases[-1].state if releases else None
    ring.finish(project)
    assert seen(project) == expected, label
    assert_sound(project)
    ring.discard(project)
    return state


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_a_step_the_same_command_ends_as_if_nothing_had_happened(
    name, tmp_path, monkeypatch
):
    with rounds("sqlite", name, tmp_path, monkeypatch) as (ring, expected, total):
        states = [attempt(ring, expected, step) for step in some(range(1, total + 1), 15)]
    if name != "activation":
        assert {"computing", "drawn"} <= set(states)


@pytest.mark.quick("sqlite-in parts")
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("kind", databases.KINDS)
def test_killed_twice_the_same_command_ends_as_if_nothing_had_happened(
    kind, name, tmp_path, monkeypatch
):
    rng = random.Random(f"{SEED} {kind} {name}")
    with rounds(kind, name, tmp_path, monkeypatch) as (ring, expected, total):
        for _ in range(2 * MORE_ROUNDS if kind == "sqlite" else MORE_ROUNDS):
            attempt(ring, expected, rng.randint(1, total), rng.randint(1, total))

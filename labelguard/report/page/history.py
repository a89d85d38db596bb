"""Releases, what was expected of them, and the labels that are in none."""

from __future__ import annotations

from collections.abc import Iterator

from labelguard.ledger.records import ReleaseRecord
from labelguard.release.sections import Section, Table
from labelguard.report.page.numbers import day
from labelguard.report.page.project import Seen
from labelguard.terms import DEFAULT_AGREEMENT, counted

_SHOWN = 60
_FORECASTS = 24


def left_out(seen: Seen) -> Section:
    """Labels that no release holds, because an allowance was used up, or they came twice."""
    done = seen.committed
    newest = next((one for one in reversed(done) if one.part == "training"), None)
    if newest is None:
        none = "No release to train on was committed yet."
        return Section("left-out", "Bound and dropped labels", (none,))
    last = newest.settings
    dropped = [record.settings.get("dropped_by_bound", 0) for record in done]
    return Section(
        "left-out",
        "Bound and dropped labels",
        (
            f"Labels beyond the allowance of their {seen.unit} are left out of releases. Which of "
            "them, a keyed hash of public columns decides, never a label.",
        ),
        facts=(
            ("newest release to train on", newest.id),
            ("labels in it", f"{last.get('rows_planned', 0):,}"),
            ("left out of it by the bound", f"{last.get('dropped_by_bound', 0):,}"),
            ("duplicates in it", f"{last.get('duplicates', 0):,}"),
            ("releases that left labels out", f"{sum(map(bool, dropped)):,} of {len(done):,}"),
        ),
    )


def releases(seen: Seen) -> Section:
    """Every release, whatever became of it."""
    if not seen.releases:
        return Section("releases", "Releases", ("No release was made yet.",))
    names = {record.id: record.name for record in seen.policies}
    rows = tuple(
        (
            one.id,
            day(one.created_at),
            one.settings["mechanism"],
            names.get(one.policy_id, ""),
            one.state,
            one.settings.get("labelers"),
            one.rows,
            one.charged,
            one.settings.get("dropped_by_bound"),
        )
        for one in reversed(seen.releases[-_SHOWN:])
    )
    columns = (
        *("release", "begun (UTC)", "mechanism", "policy", "state"),
        *(f"{seen.unit}s", "rows", "charged", "left out"),
    )
    gone = sum(one.state == "abandoned" for one in seen.releases)
    abandoned = (
        (
            f"{counted(gone, 'release')} given up after labels were read; what they charged stays "
            "charged.",
        )
        if gone
        else ()
    )
    older = len(seen.releases) - len(rows)
    more = (f"{older:,} older ones: labelguard release list.",) if older else ()
    return Section(
        "releases",
        "Releases",
        (f"{counted(len(seen.committed), 'release')} committed.", *abandoned, *more),
        Table("Releases, newest first", columns, rows, newest_first=True),
    )


def planned(seen: Seen) -> Iterator[Section]:
    """What the planner expected of releases, where it was asked and its answer was kept."""
    forecast = [one for one in seen.committed if "forecast" in one.settings]
    poor = [one for one in seen.committed if "discouraged" in one.settings]
    if not forecast and not poor:
        return
    yield Section(
        "planned",
        "What releases were expected to give",
        bool(forecast)
        * (
            "Forecast on labels that were simulated over the real pairs and labelers, before any "
            "label was read. Accuracy is the share of strict labels of fresh labelers that a "
            "linear model gets right; label error the share of strict labels whose released value "
            f"differs. Two people differ on {1 - DEFAULT_AGREEMENT:.0%}, usually.",
        ),
        points=tuple(
            f"{one.id} was made all the same: {one.settings['discouraged']}." for one in poor
        ),
        table=Table(
            "Forecasts kept with releases, newest first",
            ("release", "mechanism", "accuracy", "90% range", "label error"),
            tuple(map(_forecast, reversed(forecast[-_FORECASTS:]))),
        )
        if forecast
        else None,
    )


def _forecast(record: ReleaseRecord) -> tuple[str, ...]:
    said = record.settings["forecast"]
    accuracy, error = said["accuracy"], said["label_error"]
    return (
        record.id,
        record.settings["mechanism"],
        f"{accuracy['mean']:.3f}",
        f"{accuracy['low']:.3f} to {accuracy['high']:.3f}",
        f"{error['mean']:.3f}",
    )

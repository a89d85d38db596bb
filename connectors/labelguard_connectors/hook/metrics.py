"""Metrics of the hook for Prometheus: counts and times, by connector, and never by labeler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from labelguard import clock
from labelguard.project.attempts import REASONS
from labelguard_connectors.hook.served import ServedProject

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_EVENTS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


class Metrics:
    """The numbers of one server, apart from those of any other in this process."""

    def __init__(self, project: ServedProject, connectors: Sequence[str]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_ProjectSeries(project))
        own: dict[str, Any] = {"namespace": "labelguard_hook", "registry": self.registry}
        about = "Deliveries by connector and the status that they were answered with."
        self.deliveries = Counter("deliveries", about, ["connector", "status"], **own)
        about = "Deliveries about another project of the tool than labelguard.toml names."
        self.ignored = Counter("ignored_deliveries", about, ["connector"], **own)
        for name in connectors:  # or the first one would be no increase
            self.ignored.labels(name)
        self.events = Counter("events", "Events stored for the first time.", **own)
        about = "Events that were stored before, and ignored."
        self.repeated = Counter("repeated_events", about, **own)
        about = "Time from a delivery's headers to its answer."
        self.seconds = Histogram("delivery_seconds", about, buckets=_SECONDS, **own)
        about = "Time of a transaction, until it is on disk."
        self.commits = Histogram("commit_seconds", about, buckets=_SECONDS, **own)
        about = "Events that were stored in one transaction."
        self.commit_events = Histogram("commit_events", about, buckets=_EVENTS, **own)
        self.queued = Gauge("queued_events", "Events not yet on disk.", **own)
        about = "Events in the inbox that no release has taken up."
        self.waiting = Gauge("waiting_events", about, **own)
        self.letters = Gauge("dead_letters", "Answers that could not be understood.", **own)

    def count_deliveries_and_events(self) -> tuple[int, int]:
        """Deliveries that were answered with 200, and events that were new."""
        samples = [one for metric in self.registry.collect() for one in metric.samples]
        answered = (one for one in samples if one.name == "labelguard_hook_deliveries_total")
        done = sum(one.value for one in answered if one.labels["status"] == "200")
        new = sum(one.value for one in samples if one.name == "labelguard_hook_events_total")
        return int(done), int(new)


def render_metrics(metrics: Mapping[str, Metrics], strays: Metrics | None = None) -> bytes:
    """Return the numbers of projects, by name, as Prometheus reads them.

    Every number has the name of its project, but that of an only one, whose name is "". `strays`
    are deliveries to none of them.
    """
    registry = CollectorRegistry()
    registry.register(_Several(metrics, strays))
    return generate_latest(registry)


class _Several(Collector):
    """The numbers of projects, by name."""

    def __init__(self, metrics: Mapping[str, Metrics], strays: Metrics | None) -> None:
        self._metrics, self._strays = metrics, strays

    def collect(self) -> Iterator[Metric]:
        """Yield each family once, with the samples of all."""
        families: dict[str, Metric] = {}
        for project, one in self._metrics.items():
            name = {"project": project} if project else {}
            for family in one.registry.collect():
                samples, family.samples = family.samples, []
                families.setdefault(family.name, family).samples += [
                    each._replace(labels={**name, **each.labels}) for each in samples
                ]
        for family in self._strays.deliveries.collect() if self._strays else ():
            families[family.name].samples += [
                each._replace(labels={"project": "unknown", **each.labels})
                for each in family.samples
            ]
        yield from families.values()


class _ProjectSeries(Collector):
    """The worker, and what other processes do: as the project's directory has it."""

    def __init__(self, project: ServedProject) -> None:
        self._project = project

    def collect(self) -> Iterator[Metric]:
        """Yield failures by reason, and when releases and readings of tools succeeded last, in
        seconds since 1970.
        """
        known = self._project.attempts()
        failed = CounterMetricFamily(
            "labelguard_releases_failed",
            "Attempts to release that failed, by the kind of error; never by a label.",
            labels=["reason"],
        )
        for reason in REASONS:  # all of them, or the first failure would be no increase
            failed.add_metric([reason], known.failed.get(reason, 0))
        yield failed
        last = GaugeMetricFamily(
            "labelguard_last_release_timestamp",
            "When an attempt to release succeeded last; 0 before the first.",
        )
        at = clock.parse_time(known.released_at).timestamp() if known.released_at else 0
        last.add_metric([], at)
        yield last
        up = GaugeMetricFamily(
            "labelguard_hook_worker_up",
            "1 while the worker beside the server runs; 0 from its end until it ran for a minute.",
        )
        if self._project.worker_ends is not None:
            up.add_metric([], 0 if self._project.worker_ends else 1)
        yield up
        reconciled = GaugeMetricFamily(
            "labelguard_hook_last_reconcile_timestamp",
            "The day on which a worker last read all that a tool holds; 0 while it never could.",
            labels=["connector"],
        )
        state = self._project.worker_state()
        for name in sorted({*state.reconciled, *state.unreconciled}):
            day = state.reconciled.get(name)
            at = clock.parse_time(f"{day}T00:00:00Z").timestamp() if day else 0
            reconciled.add_metric([name], at)
        yield reconciled

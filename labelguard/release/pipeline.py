"""`privatize`: raw preference labels in, a labeler-level private release out, its budget accounted.

The order of a release is plan → charge → draw → publish, and each step can crash:

1. the input is staged canonically, and the release's idempotency key is computed from its public
   columns; a request that was answered before is answered again without looking at labels;
2. rows, bounds and charges are planned from public columns;
3. one ledger transaction charges and reserves; it yields the grant that the next steps need;
4. labels are randomized into the PRIVATE map, which is flushed and renamed as a whole; the ledger
   then marks the release as drawn, with the map's keyed digest, and the randomness, which was in
   memory only, is forgotten;
5. the output is written from the map and the public texts alone, flushed, renamed, committed.

A crash before the mark discards what was drawn, and the same command draws everything afresh:
nothing was visible, so one charge is right. After it, the map is taken as it is and no label is
read. So there is one charge and one answer, whatever happens, and no randomness to come back to.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import numpy as np

from labelguard.errors import InvalidLabels, LedgerError, NoProject, ProjectError
from labelguard.ingest import layouts, quarantine
from labelguard.ingest.conflicts import refuse_conflicts
from labelguard.ingest.formats import FORMATS
from labelguard.ingest.sources import Input
from labelguard.ingest.staged import Staged
from labelguard.learning.features import Wait
from labelguard.ledger.ledger import Grant
from labelguard.ledger.records import Charge, ReleaseRecord
from labelguard.policy import pricing
from labelguard.policy.bounds import Bound
from labelguard.policy.events import Price
from labelguard.policy.label_values import LabelValues
from labelguard.project import policies, recovery
from labelguard.project.opening import OpenProject, Where, init, located
from labelguard.project.project import Project
from labelguard.release import delivery, ingested, judge, planning, publish, resolve
from labelguard.release.admission import admit
from labelguard.release.intake import check_choices
from labelguard.release.planning import Plan
from labelguard.release.preview import Preview, previewed
from labelguard.release.protocol import Job, Lesson, Mechanism, Prepared
from labelguard.release.request import Options, Request, requested
from labelguard.release.writer import Release, read_card
from labelguard.storage import blocks
from labelguard.storage.executor import open_executor
from labelguard.storage.sums import fault
from labelguard.terms import Progress, counted, silent


def privatize(
    source: Input | None = None,
    *,
    mechanism: str = "auto",
    namespace: str | None = None,
    project: Where = None,
    progress: Progress = silent,
    review: Review | None = None,
    wait: Wait | None = None,
    **options: Unpack[Options],
) -> Release:
    """Release a table of preference labels with labeler-level label differential privacy.

    `source` is a path, a glob, `-` for standard input, a table (pyarrow, polars, pandas, datasets),
    splits by name, or a list of these; without one, what was ingested is released
    (`project.ingestion`). The first call fixes the project's policy, unless one was made before
    (`project.policies`); later calls release new labels under it, and labels released before keep
    their value at no cost. `namespace` names the source of these labelers' ids (default: that of
    `labelguard.toml`, or the only one ingested; see `project.linking`). `review` is called with a
    `Preview` before anything is charged, unless a run is taken up that was begun before; `wait`, at
    a first release, with the seconds that computing features for its forecast will take. What they
    raise stops the run.

    `options` are, as on the command line,

    - what it may cost: epsilon, delta, ties, tie_status_public, unit,
      max_labels_per_labeler, releases, label_values, skips, assignment_reactive (`policy.Request`);
    - how the input is read: columns, question, format, split, bad_rows, max_input_bytes
      (`release.intake.Intake`);
    - how it is run: exhausted, again, accept_delta, output, workers (`release.request.Request`);
    - of `statistic`, `props` and `auto`: features, components, ridge, agreement, also; of
      `statistic`: whitening, floor, clip_quantile; of `props`: stages, combine, learner, model,
      lora, train_config (`release.methods.options`);
    - those of a mechanism of another package, which a type checker does not know.

    Guarantee: (ε, δ) of the policy for each of its units under `replace_labels`, over all releases
    that it pays for, against anyone without the project's keys (docs/concepts.md).

    Raises `InvalidLabels`, `PolicyError`, `BudgetExceeded`, `ProjectBusy`, `KeyProblem`,
    `LedgerError`, `ProjectError`; then nothing new was released.
    """
    source, home, given = _meant(source, located(project), namespace, options)
    request = requested(home, mechanism, given)
    delivery.check(request.output)
    with _room_in(home), OpenProject.job(home) as opened:
        return _Run(opened, request, progress, review, wait).run(source)


def preview(
    source: Input | None = None,
    *,
    mechanism: str = "auto",
    namespace: str | None = None,
    project: Where = None,
    progress: Progress = silent,
    **options: Unpack[Options],
) -> Preview:
    """What `privatize` would fix, charge and give, without doing it.

    Takes what `privatize` takes and raises what it raises. Where there is no project, it is said of
    one that would be made.
    """
    with _project_or_none(project) as found, _room_in(found):
        source, home, given = _meant(source, found, namespace, options)
        request = requested(home, mechanism, given)
        with OpenProject.job(home) as opened:
            return _Run(opened, request, progress).preview(source)


def _meant(
    source: Input | None, home: Project, namespace: str | None, options: Mapping[str, Any]
) -> tuple[Input, Project, Mapping[str, Any]]:
    """The input that is meant, the project as it names its labelers, and how it is read."""
    if source is None:
        return ingested.chosen(home, namespace, options)
    return source, replace(home, namespace=namespace or home.namespace), options


@contextlib.contextmanager
def _project_or_none(where: Where) -> Iterator[Project]:
    """The project that is meant, or one for the time being where none is."""
    try:
        found = located(where)
    except NoProject:
        # What the environment names belongs to a project that is there, or should be.
        elsewhere = ("LABELGUARD_KEY", "LABELGUARD_LEDGER")
        if where is not None or any(name.startswith(elsewhere) for name in os.environ):
            raise
        found = None
    if found:
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="labelguard-") as directory:
        yield init(Path(directory), lasting=False)


@contextlib.contextmanager
def _room_in(home: Project) -> Iterator[None]:
    """Say of a full disk, or memory, what it means for a release."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise ProjectError(
            f"cannot write in {home.state}: {getattr(error, 'strerror', None) or error}; "
            "nothing is lost: make room and run the same command again"
        ) from None


Review: TypeAlias = Callable[[Preview], None]


class _Run:
    """One run of `privatize`, under the project's lock."""

    def __init__(
        self,
        opened: OpenProject,
        request: Request,
        progress: Progress,
        review: Review | None = None,
        wait: Wait | None = None,
    ) -> None:
        self.opened, self.request, self.progress = opened, request, progress
        self.project, self.keys, self.ledger = opened.project, opened.keys, opened.ledger
        self.review, self.wait = review, wait
        self.executor = open_executor(request.workers)
        self.terms = resolve.begin(request, self.ledger)
        total = policies.total(self.ledger, self.terms.policy)
        self.notes = judge.price(self.terms.asked, total)
        self.again = 0

    @property
    def mechanism(self) -> Mechanism[Any]:
        """How labels are released: settled once the input was read."""
        assert self.terms.mechanism is not None
        return self.terms.mechanism

    def run(self, source: Input) -> Release:
        """Read, judge, plan, charge, draw, publish; or answer as before."""
        job = self._read(source)
        reads = admit(self.ledger, self.project.namespace, job.staged)
        job, key, record = self._request(job)
        if record and record.state == "committed":
            return self._answer(record, reused=True)
        delivery.check_new(self.request.output)
        self._judge(job.staged)
        epoch = self.ledger.begin_job()
        self.notes += recovery.settle(self.opened, record.id if record else None, epoch)
        plan = self._plan(job, record)
        prices = self._prices(plan)
        if record is None:
            found = self._preview(job, plan, prices)
            self.notes = list(found.notes)
            if self.review:
                self.review(found)
        recorded = record.settings["parameters"] if record else None
        prepared = self.mechanism.prepare(job, plan, recorded)
        event = self._event(plan, key, prepared.parameters, prices)
        grant = self.ledger.charge(event, job.policy, epoch, resumed=record)
        self.ledger.start(grant, epoch, reads)
        grant = self._draw(job, prepared, grant, epoch)
        rows, hashes = self._publish(job, prepared, grant)
        self._set_aside(job.staged, grant)
        self.ledger.commit(grant, epoch, rows, hashes)
        shutil.rmtree(self.project.stages / grant.release.id, ignore_errors=True)
        committed = self.ledger.release(grant.release.id)
        assert committed is not None
        return self._answer(committed)

    def preview(self, source: Input) -> Preview:
        """What `run` would do; nothing is charged, drawn or written into the ledger."""
        job = self._read(source, forecast=True)
        admit(self.ledger, self.project.namespace, job.staged)
        job, _, record = self._request(job)
        made = record is not None and record.state == "committed"
        if not made:
            self._judge(job.staged)
        plan = self._plan(job, None if made else record)
        found = self._preview(job, plan, self._prices(plan))
        return replace(found, reused=record.id) if record and made else found

    def _read(self, source: Input, *, forecast: bool = False) -> Job:
        """Stage the labels, and further pairs if there are any; settle on what is done to them."""
        terms, intake = self.terms, self.request.intake
        ties = terms.policy.ties_of(terms.event)
        reading = layouts.Reading(
            intake.columns,
            terms.policy.unit,
            terms.columns,
            question=intake.question,
            format=intake.format,
            split=intake.split,
            values=LabelValues.parse(terms.policy.label_values),
            skips=terms.policy.skips,
        )
        public = ties if ties in ("drop", "half") else ""
        staged = intake.stage(self.opened, source, reading, self.progress, public)
        check_choices(staged, terms.mechanism, ties)
        self._note_formats(staged)
        if staged.refused_rows:
            who = counted(staged.refused_labelers, "retired or erased labeler")
            self.notes.append(f"{counted(staged.refused_rows, 'row')} of {who} left out")
        also = intake.stage_further(self.opened, terms.also, terms.columns, staged, self.progress)
        if terms.first or terms.mechanism is None:
            self._judge(staged)  # no request was answered yet, and forecasts may take long
        wanted = forecast or self.review is not None
        self.terms = resolve.settle(
            terms, self.ledger, staged, self.progress, self.wait, forecast=wanted
        )
        return Job(
            self.opened,
            self.terms.policy,
            self.terms.policy.allowance(self.terms.event),
            self.request.again,
            self.executor,
            self.progress,
            staged,
            also,
        )

    def _note_formats(self, staged: Staged) -> None:
        """Say as what the labels were read, where that is not plain from their columns' names."""
        if staged.own_values and "label_values" in self.request.terms:
            raise InvalidLabels(
                f"format {', '.join(sorted(staged.own_values))} says itself what its labels mean; "
                "leave out --label-values, or name another --format"
            )
        for name in sorted(staged.formats - {"pairs", "rankings"}):
            self.notes.append(f"read as {name}: {FORMATS[name].about}")

    def _settings(self) -> dict[str, object]:
        return {
            "mechanism": self.mechanism.name,
            "mechanism_version": self.mechanism.version,
            "format": 1,
            "policy": self.terms.policy_id or 1,  # it fixes all that a `Request` may say
            "choices": self.mechanism.settings(),
            "exhausted": self.request.exhausted,
            "again": self.again,
        }

    def _request(self, job: Job) -> tuple[Job, str, ReleaseRecord | None]:
        """The idempotency key of this request, and the release that it made before, if any.

        Each --again is an event of its own, counted per request; one that crashed is taken up.
        Where the mechanism is open, it is the one by which this request was answered, if it was,
        whichever others were used since.
        """
        self.again = int(self.request.again)
        found = self._find(job)
        while self.again and found[1] and found[1].state == "committed":
            self.again += 1
            found = self._find(job)
        settled = self.terms
        for terms in () if found[1] or self.again else resolve.others(settled, self.ledger):
            self.terms = terms
            other = self._find(job)
            if other[1]:
                allowance = terms.policy.allowance(terms.event)
                return replace(job, allowance=allowance), *other
        self.terms = settled
        return job, *found

    def _find(self, job: Job) -> tuple[str, ReleaseRecord | None]:
        further = job.further.staged.public_digest if job.further else b""
        settings = json.dumps(self._settings(), sort_keys=True).encode()
        text = job.staged.public_digest + further + settings
        key = self.keys.mac("idempotency", text).hex()
        return key, self.ledger.find(key)

    def _judge(self, staged: Staged) -> None:
        staged.raise_for_labels()
        if staged.given_ids:
            refuse_conflicts(staged, self.request.intake.columns.get("item_id", "item_id"))
        if staged.rows == staged.withdrawn:
            raise InvalidLabels(
                "no usable row in the input: every row is bad, skipped or has identical sides"
            )

    def _plan(self, job: Job, record: ReleaseRecord | None) -> Plan:
        staged, event = job.staged, self.terms.event
        drawn = record is not None and record.state == "drawn"
        labelers = self.ledger.labelers(event, excluding=None if drawn else record)
        plan = planning.plan(
            staged,
            self.project,
            self.keys,
            labelers,
            again=self.request.again,
            finished=record.id if record and drawn else None,
            earlier=recovery.known(self.ledger.releases(), event),
            bound=Bound.of(job.policy, event, named=staged.labelers or staged.recorded),
            executor=self.executor,
            progress=lambda share: self.progress("planning", share),
        )
        self.notes += judge.judge(
            replace(plan, units=self.keys.pseudonyms().hide(plan.units)),
            job.policy,
            event,
            people=len(blocks.unique(np.concatenate([plan.units, self.ledger.charged()]))[0]),
            drop=self.request.exhausted == "drop" or record is not None,
            resumed=record is not None,
            accept_delta=self.request.accept_delta,
        )
        return plan

    def _prices(self, plan: Plan) -> Mapping[int, Price]:
        """What a use costs for every k of the plan: as the ledger has it, or calibrated now."""
        known = self.ledger.prices(self.terms.event)
        missing = np.setdiff1d(plan.capacity, np.array(sorted(known), dtype=np.int64))
        if not len(missing):
            return known
        self.progress("calibrating", None)
        return {**known, **pricing.prices(self.terms.policy, self.terms.event, missing)}

    def _preview(self, job: Job, plan: Plan, prices: Mapping[int, Price]) -> Preview:
        known = self.ledger.labelers(self.terms.event, excluding=None)
        return previewed(self.terms, job, plan, prices, known, tuple(self.notes))

    def _event(
        self, plan: Plan, key: str, parameters: Mapping[str, Any], prices: Mapping[int, Price]
    ) -> Charge:
        return Charge(
            mechanism=self.mechanism.name,
            event=self.terms.event,
            idempotency_key=key,
            settings=self._settings() | planning.counts(plan) | {"parameters": dict(parameters)},
            labelers=plan.units,
            capacity=plan.capacity,
            charged=plan.charged,
            prices=prices,
        )

    def _set_aside(self, staged: Staged, grant: Grant) -> None:
        if staged.bad_rows:
            directory = self.project.quarantine / grant.release.id
            column = staged.columns.get("labeler_id", "labeler_id")
            name = self.project.namespace
            parts = [one.part for one in staged.understood]
            scratch = self.project.work / "quarantine"
            quarantine.write(directory, parts, staged.bad_rows, scratch, column, name)
            rows = counted(staged.fault_count, "bad row")
            self.notes.append(f"{rows} set aside in {directory}")

    def _draw(self, job: Job, prepared: Prepared, grant: Grant, epoch: int) -> Grant:
        """Draw what is new into the private map, and let the ledger know that it is complete."""
        release, plan = grant.release, prepared.plan
        if plan.new > release.charged:
            raise LedgerError(f"release {release.id} was charged less than it would draw")
        if release.state == "drawn":
            self.mechanism.draw(job, prepared, grant, None)
            return grant
        private_map = self.opened.private_map
        drawn = private_map.begin(release.id)
        self.mechanism.draw(job, prepared, grant, drawn)
        digest = private_map.complete(release.id, drawn)
        return self.ledger.mark_drawn(grant, epoch, digest, plan.drawn)

    def _publish(self, job: Job, prepared: Prepared, grant: Grant) -> tuple[int, Mapping[str, str]]:
        """Write the release from what was drawn; its rows, and the hashes of its files."""
        directory = self.project.stages / grant.release.id
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        prepared = self.mechanism.learn(Lesson(job.outcomes, directory, self.progress), prepared)
        finished = self.mechanism.finish(job, prepared, grant)
        standing = policies.standing(self.ledger)
        return publish.publish(job, prepared.plan, grant, finished, standing)

    def _answer(self, record: ReleaseRecord, *, reused: bool = False) -> Release:
        path = self.project.releases / record.id
        broken = fault(path, record.files) if reused else None
        if broken:
            raise ProjectError(f"release {record.id}: {broken}; restore it from a backup")
        if self.request.output:
            delivery.deliver(path, self.request.output, record.files)
            path = self.request.output
        return Release(record.id, path, read_card(path), reused, tuple(self.notes))

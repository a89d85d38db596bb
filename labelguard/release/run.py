"""One run of `privatize` up to the private map: the part of it that reads labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import numpy as np

from labelguard.budget import pricing
from labelguard.budget.event_kind import Price
from labelguard.budget.label_values import LabelValues
from labelguard.budget.policy import Bound
from labelguard.errors import InvalidLabels, LedgerError
from labelguard.inputs import layouts, quarantine
from labelguard.inputs.connector import SKIP, describe_counts
from labelguard.inputs.formats import FORMATS
from labelguard.inputs.pairs import refuse_conflicts
from labelguard.inputs.sources import Input
from labelguard.inputs.staged import Staged
from labelguard.learning.features import Wait
from labelguard.ledger.ledger import Grant
from labelguard.ledger.records import Admission, Charge, ReleaseRecord
from labelguard.project import policies, recovery
from labelguard.project.opening import OpenProject
from labelguard.release import checks, delivery, publish, resolve, selection
from labelguard.release.drawn import Drawn, answer
from labelguard.release.preview import Plan, Preview, previewed
from labelguard.release.protocol import Job, Mechanism, Prepared
from labelguard.release.request import ReleaseRequest
from labelguard.release.selection import PlannedRows
from labelguard.release.writer import Release
from labelguard.storage import blocks
from labelguard.storage.executor import open_executor
from labelguard.text import Progress, pluralize

Review: TypeAlias = Callable[[Preview], None]
"""Told what a release will be before anything is charged; what it raises stops the run."""


class Run:
    """One run of `privatize`, as far as it needs labels; under the project's lock."""

    def __init__(
        self,
        opened: OpenProject,
        request: ReleaseRequest,
        progress: Progress,
        review: Review | None = None,
        wait: Wait | None = None,
    ) -> None:
        self.opened, self.request, self.progress = opened, request, progress
        self.project, self.keys, self.ledger = opened.project, opened.keys, opened.ledger
        self.review, self.wait = review, wait
        self.executor = open_executor(request.workers)
        self.terms = resolve.begin(request, opened)
        total = policies.total(self.ledger, self.terms.policy)
        self.notes = checks.check_price(self.terms.asked, total)
        self.again = 0
        self.discouraged: str | None = None

    @property
    def mechanism(self) -> Mechanism[Any]:
        """How labels are released: settled once the input was read."""
        assert self.terms.mechanism is not None
        return self.terms.mechanism

    def run(self, source: Input) -> Drawn | Release:
        """Read, plan, charge and draw; or return what this very request made before."""
        job, key, record, reads = self._begin(source)
        if record and record.state == "committed":
            self.project.clear(record.id)  # a crash may have come before
            return answer(self.project, record, self.request.output, self.notes, reused=True)
        if record:
            self.project.check_free(record.id)
        delivery.check_new(self.request.output)
        epoch = self.ledger.begin_job()
        self.notes += recovery.settle(self.opened, record.id if record else None, epoch)
        plan = self._plan(job, key, record)
        if record is None:
            self.notes, self.discouraged = list(plan.preview.notes), plan.preview.discouraged
            if self.review:
                self.review(plan.preview)
        recorded = record.settings["parameters"] if record else None
        prepared = self.mechanism.prepare(job, plan.rows, recorded)
        charge = self._charge(source, plan, key, prepared.parameters)
        grant = self.ledger.charge(charge, job.policy, epoch, resumed=record)
        self.ledger.start(grant, epoch, reads)
        grant = self._draw(job, prepared, grant, epoch)
        self._set_aside(job.staged, grant)
        facts = publish.told(job, plan.rows, grant)
        output, notes = self.request.output, tuple(self.notes)
        return Drawn(job, self.mechanism, prepared, grant, epoch, facts, output, notes)

    def plan(self, source: Input) -> Plan:
        """Return the plan of what `run` would do; nothing is charged, drawn or written."""
        job, key, record, _ = self._begin(source, forecast=True)
        plan = self._plan(job, key, record)
        made = record.id if record and record.state == "committed" else None
        return replace(plan, preview=replace(plan.preview, reused=made))

    def _begin(
        self, source: Input, *, forecast: bool = False
    ) -> tuple[Job, str, ReleaseRecord | None, Admission]:
        """Read and judge the input, and find what this very request made before, if anything."""
        job = self._read(source, forecast=forecast)
        reads = checks.admit(self.ledger, self.project.namespace, job.staged)
        job, key, record = self._request(job)
        if record is None or record.state != "committed":
            self._judge(job.staged)
        return job, key, record, reads

    def _read(self, source: Input, *, forecast: bool = False) -> Job:
        """Stage the labels, and further pairs if there are any; settle on what is done to them."""
        terms, intake = self.terms, self.request.intake
        ties = terms.policy.ties_of(terms.event)
        declared = terms.policy.public_columns
        reading = layouts.Reading(
            intake.columns,
            terms.policy.unit,
            terms.columns,
            question=intake.question,
            format=intake.format,
            split=intake.split,
            values=LabelValues.parse(terms.policy.label_values),
            skips=terms.policy.skips,
            public_columns=declared,
        )
        drop = ties == "drop"
        staged = intake.stage(self.opened, source, reading, self.progress, drop_ties=drop)
        checks.check_choices(staged, terms.mechanism, ties)
        self._note_formats(staged)
        if staged.refused_rows:
            who = pluralize(staged.refused_labelers, "retired or erased labeler")
            self.notes.append(f"{pluralize(staged.refused_rows, 'row')} of {who} left out")
        also = intake.stage_further(
            *(self.opened, terms.also, terms.columns, declared, staged, self.progress)
        )
        if terms.first or terms.mechanism is None:
            self._judge(staged)  # no request was answered yet, and forecasts may take long
        wanted = forecast or self.review is not None
        self.terms = resolve.settle(
            terms, self.ledger, staged, self.progress, self.wait, forecast=wanted
        )
        checks.check_fewest(staged, self.terms.policy.allowance(self.terms.event))
        return Job(
            self.opened,
            self.terms.policy,
            self.terms.policy.allowance(self.terms.event),
            self.request.again,
            self.executor,
            self.progress,
            staged,
            also,
            self.project.work / "outcomes",
            self.terms.featured,
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
        self.notes += [one.note for one in staged.understood if one.note]
        # Skips are counted where the policy says that they are public; elsewhere there are none.
        if left_out := staged.left_out + Counter({SKIP: staged.skipped}):
            self.notes.append(f"left out: {describe_counts(left_out)}")

    def _settings(self) -> dict[str, object]:
        return {
            "mechanism": self.mechanism.name,
            "mechanism_version": self.mechanism.version,
            "format": 1,
            "policy": self.terms.policy_id or 1,  # it fixes all that a `ReleaseRequest` may say
            "choices": self.mechanism.settings(),
            "exhausted": self.request.exhausted,
            "again": self.again,
            **({} if self.mechanism.part == "training" else {"part": self.mechanism.part}),
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
                f"no usable row in the input: of {pluralize(staged.rows_read, 'row')} "
                f"{staged.fault_count:,} cannot be used, {staged.skipped + staged.withdrawn:,} "
                f"are skipped, and {staged.identical_sides:,} have identical sides"
            )

    def _plan(self, job: Job, key: str, record: ReleaseRecord | None) -> Plan:
        """Select rows, price them, and say what becomes of them; from public columns alone.

        `record` is the release that this very request made before, or began.
        """
        event = self.terms.event
        begun = record if record and record.state != "committed" else None
        drawn = begun is not None and begun.state == "drawn"
        rows = selection.plan_rows(
            job.staged,
            self.project,
            self.keys,
            self.ledger.labelers(event, excluding=None if drawn else begun),
            again=self.request.again,
            finished=begun.id if begun and drawn else None,
            earlier=recovery.known(self.ledger.releases(), event),
            bound=Bound.of(job.policy, event, named=job.staged.labelers or job.staged.recorded),
            part=self.mechanism.part,
            held_out=job.policy.held_out,
            executor=self.executor,
            progress=lambda share: self.progress("planning", share),
        )
        self.notes += checks.check_plan(
            rows,
            job.policy,
            event,
            self.mechanism.part,
            self.ledger,
            people=len(blocks.unique(np.concatenate([rows.units, self.ledger.charged()]))[0]),
            drop=self.request.exhausted == "drop" or begun is not None,
            resumed=begun is not None,
            accept_delta=self.request.accept_delta,
        )
        prices = self._prices(rows)
        if record is None:
            self.mechanism.check(job)
        known = self.ledger.labelers(event, excluding=None)
        notes = tuple(self.notes)
        return Plan(rows, prices, previewed(self.terms, job, key, rows, prices, known, notes))

    def _prices(self, rows: PlannedRows) -> Mapping[int, Price]:
        """What a use costs for every k of the rows: as the ledger has it, or calibrated now."""
        known = self.ledger.prices(self.terms.event)
        missing = np.setdiff1d(rows.capacity, np.array(sorted(known), dtype=np.int64))
        if not len(missing):
            return known
        self.progress("calibrating", None)
        return {**known, **pricing.prices(self.terms.policy, self.terms.event, missing)}

    def _charge(self, source: Input, plan: Plan, key: str, parameters: Mapping[str, Any]) -> Charge:
        repeatable = self.request.repeatable(self.mechanism.name, source, self.project)
        return Charge(
            mechanism=self.mechanism.name,
            event=self.terms.event,
            idempotency_key=key,
            settings=self._settings()
            | selection.counts_of(plan.rows)
            | {"parameters": dict(parameters), "request": repeatable}
            | self._forecast(),
            labelers=plan.rows.units,
            capacity=plan.rows.capacity,
            charged=plan.rows.charged,
            prices=plan.prices,
        )

    def _forecast(self) -> dict[str, object]:
        """What the release was expected to give, as far as that was asked: for the report."""
        found, poor = self.terms.forecast, self.discouraged
        told: dict[str, object] = {"discouraged": poor} if poor else {}
        if found is None:
            return told
        said = {"accuracy": asdict(found.accuracy), "label_error": asdict(found.label_error)}
        return told | {"forecast": said}

    def _set_aside(self, staged: Staged, grant: Grant) -> None:
        if any(one.part.answers for one in staged.understood):
            quarantine.write_outside(self.project.outside, staged, self.project.work / "outside")
        if staged.bad_rows:
            directory = self.project.quarantine / grant.release.id
            column = staged.columns.get("labeler_id", "labeler_id")
            name = self.project.namespace
            parts = [one.part for one in staged.understood]
            scratch = self.project.work / "quarantine"
            quarantine.write(directory, parts, staged.bad_rows, scratch, column, name)
            rows = pluralize(staged.fault_count, "bad row")
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

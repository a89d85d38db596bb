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

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from labelguard.errors import InvalidLabels, LedgerError, ProjectError
from labelguard.ingest import layouts, quarantine
from labelguard.ingest.conflicts import refuse_conflicts
from labelguard.ingest.sources import Input
from labelguard.ingest.staging import Staged
from labelguard.ledger.ledger import Grant
from labelguard.ledger.records import Charge, ReleaseRecord
from labelguard.policy import pricing
from labelguard.policy.bounds import Bound
from labelguard.policy.label_values import LabelValues
from labelguard.project import policies, recovery
from labelguard.project.opening import OpenProject, Where, located
from labelguard.release import delivery, judge, planning, publish
from labelguard.release.admission import admit
from labelguard.release.planning import Plan
from labelguard.release.protocol import Job, Prepared
from labelguard.release.request import Options, Request, requested
from labelguard.release.writer import Release, read_card
from labelguard.storage import blocks
from labelguard.storage.executor import open_executor
from labelguard.storage.sums import fault
from labelguard.terms import Progress, counted, silent


def privatize(
    source: Input,
    *,
    mechanism: str = "rr",
    namespace: str | None = None,
    project: Where = None,
    progress: Progress = silent,
    **options: Unpack[Options],
) -> Release:
    """Release a table of preference labels with labeler-level label differential privacy.

    `source` is a path, a glob, a list of paths, or a table (pyarrow, polars, pandas). The first
    call fixes the project's policy, unless one was made before (`project.policies`); later calls
    release new labels under it, and labels released before keep their value at no cost. `namespace`
    names the source of these labelers' ids (default: that of `labelguard.toml`; see
    `project.linking`).

    `options` are, as on the command line,

    - what it may cost: epsilon, delta, ties, tie_status_public, unit,
      max_labels_per_labeler, releases, label_values, skips, assignment_reactive (`policy.Request`);
    - how the input is read: columns, question, format, split, bad_rows, max_input_bytes
      (`release.intake.Intake`);
    - how it is run: exhausted, again, accept_delta, output, workers (`release.request.Request`);
    - of `statistic`, `props` and `auto`: features, components, ridge, agreement, also; of
      `statistic`: whitening, floor, clip_quantile; of `props`: stages, combine, learner
      (`release.methods.options`);
    - those of a mechanism of another package, which a type checker does not know.

    Guarantee: (ε, δ) of the policy for each of its units under `replace_labels`, over all releases
    that it pays for, against anyone without the project's keys (docs/concepts.md).

    Raises `InvalidLabels`, `PolicyError`, `BudgetExceeded`, `ProjectBusy`, `KeyProblem`,
    `LedgerError`, `ProjectError`; then nothing new was released.
    """
    home = located(project)
    home = replace(home, namespace=namespace or home.namespace)
    request = requested(home, source, mechanism, options, progress)
    delivery.check(request.output)
    try:
        with OpenProject.job(home) as opened:
            return _Run(opened, request, progress).run(source)
    except (OSError, MemoryError) as error:
        raise ProjectError(
            f"cannot write in {home.state}: {getattr(error, 'strerror', None) or error}; "
            "nothing is lost: make room and run the same command again"
        ) from None


class _Run:
    """One run of `privatize`, under the project's lock."""

    def __init__(self, opened: OpenProject, request: Request, progress: Progress) -> None:
        self.opened, self.request, self.progress = opened, request, progress
        self.project, self.keys, self.ledger = opened.project, opened.keys, opened.ledger
        self.mechanism = request.mechanism
        self.policy_id, self.policy = policies.for_request(self.ledger, request.terms)
        self.event = self.mechanism.priced
        self.executor = open_executor(request.workers)
        self.notes = judge.price(request.terms, policies.total(self.ledger, self.policy))
        self.again = 0

    def run(self, source: Input) -> Release:
        job = self._read(source)
        staged = job.staged
        reads = admit(self.ledger, self.project.namespace, staged)
        further = job.further.staged.public_digest if job.further else b""
        key, record = self._request(staged.public_digest + further)
        if record and record.state == "committed":
            return self._answer(record, reused=True)
        delivery.check_new(self.request.output)
        self._judge(staged)
        epoch = self.ledger.begin_job()
        self.notes += recovery.settle(self.opened, record.id if record else None, epoch)
        plan = self._plan(staged, record)
        recorded = record.settings["parameters"] if record else None
        prepared = self.mechanism.prepare(job, plan, recorded)
        event = self._event(plan, key, prepared.parameters)
        grant = self.ledger.charge(event, self.policy, epoch, resumed=record)
        self.ledger.start(grant, epoch, reads)
        grant = self._draw(job, prepared, grant, epoch)
        rows, hashes = self._publish(job, prepared, grant)
        self._set_aside(staged, grant)
        self.ledger.commit(grant, epoch, rows, hashes)
        shutil.rmtree(self.project.stages / grant.release.id, ignore_errors=True)
        committed = self.ledger.release(grant.release.id)
        assert committed is not None
        return self._answer(committed)

    def _read(self, source: Input) -> Job:
        """Stage the labels, and further pairs if there are any."""
        ties = self.policy.ties_of(self.event)
        intake, features = self.request.intake, self.mechanism.features
        reading = layouts.Reading(
            intake.columns,
            self.policy.unit,
            features,
            question=intake.question,
            format=intake.format,
            split=intake.split,
            values=LabelValues.parse(self.policy.label_values),
            skips=self.policy.skips,
        )
        public = ties if ties in ("drop", "half") else ""
        staged = intake.stage(self.opened, source, reading, self.progress, public)
        if staged.refused_rows:
            who = counted(staged.refused_labelers, "retired or erased labeler")
            self.notes.append(f"{counted(staged.refused_rows, 'row')} of {who} left out")
        also = self.mechanism.also
        return Job(
            self.opened,
            self.policy,
            self.policy.allowance(self.event),
            self.request.again,
            self.executor,
            self.progress,
            staged,
            intake.stage_further(self.opened, also, features, staged, self.progress),
        )

    def _settings(self) -> dict[str, object]:
        return {
            "mechanism": self.mechanism.name,
            "mechanism_version": self.mechanism.version,
            "format": 1,
            "policy": self.policy_id,  # it fixes all that a `Request` may say
            "choices": self.mechanism.settings(),
            "exhausted": self.request.exhausted,
            "again": self.again,
        }

    def _request(self, public_digest: bytes) -> tuple[str, ReleaseRecord | None]:
        """The idempotency key of this request, and the release that it made before, if any.

        Each --again is an event of its own, counted per request; one that crashed is taken up.
        """
        self.again = int(self.request.again)
        while True:
            settings = json.dumps(self._settings(), sort_keys=True).encode()
            key = self.keys.mac("idempotency", public_digest + settings).hex()
            record = self.ledger.find(key)
            if not self.again or record is None or record.state != "committed":
                return key, record
            self.again += 1

    def _judge(self, staged: Staged) -> None:
        staged.raise_for_labels()
        if staged.given_ids:
            refuse_conflicts(staged, self.request.intake.columns.get("item_id", "item_id"))
        if not staged.rows:
            raise InvalidLabels(
                "no usable row in the input: every row is bad, skipped or has identical sides"
            )

    def _plan(self, staged: Staged, record: ReleaseRecord | None) -> Plan:
        drawn = record is not None and record.state == "drawn"
        labelers = self.ledger.labelers(self.event, excluding=None if drawn else record)
        plan = planning.plan(
            staged,
            self.project,
            self.keys,
            labelers,
            again=self.request.again,
            finished=record.id if record and drawn else None,
            earlier=recovery.known(self.ledger.releases(), self.event),
            bound=Bound.of(self.policy, self.event, named=staged.labelers or staged.recorded),
            executor=self.executor,
            progress=lambda share: self.progress("planning", share),
        )
        self.notes += judge.judge(
            replace(plan, units=self.keys.pseudonyms().hide(plan.units)),
            self.policy,
            self.event,
            people=len(blocks.unique(np.concatenate([plan.units, self.ledger.charged()]))[0]),
            drop=self.request.exhausted == "drop" or record is not None,
            resumed=record is not None,
            accept_delta=self.request.accept_delta,
        )
        return plan

    def _event(self, plan: Plan, key: str, parameters: Mapping[str, Any]) -> Charge:
        prices = self.ledger.prices(self.event)
        missing = np.setdiff1d(plan.capacity, np.array(sorted(prices), dtype=np.int64))
        if len(missing):
            self.progress("calibrating", None)
            prices |= pricing.prices(self.policy, self.event, missing)
        return Charge(
            mechanism=self.mechanism.name,
            event=self.event,
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
            column = self.request.intake.columns.get("labeler_id", "labeler_id")
            name = self.project.namespace
            scratch = self.project.work / "quarantine"
            quarantine.write(directory, staged.parts, staged.bad_rows, scratch, column, name)
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

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
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from labelguard.errors import (
    InvalidLabels,
    LedgerError,
    PolicyError,
    ProjectError,
)
from labelguard.ingest import groups, layouts, quarantine
from labelguard.ingest.conflicts import refuse_conflicts
from labelguard.ingest.sources import Input, parts
from labelguard.ingest.staging import Staged, StagingOptions, stage
from labelguard.ledger.ledger import Grant
from labelguard.ledger.records import Charge, ReleaseRecord
from labelguard.policy import pricing
from labelguard.policy.bounds import Bound
from labelguard.policy.label_values import LabelValues, Skips, Ties
from labelguard.policy.policy import Request, Unit
from labelguard.project import policies, recovery
from labelguard.project.opening import OpenProject, Where, located
from labelguard.project.private_map import PrivateMap
from labelguard.release import delivery, judge, methods, planning, publish
from labelguard.release.admission import admit
from labelguard.release.methods import auto
from labelguard.release.options import Options
from labelguard.release.planning import Plan
from labelguard.release.protocol import Job, Mechanism
from labelguard.release.writer import Release, read_card
from labelguard.storage import blocks
from labelguard.storage.sums import fault
from labelguard.terms import Progress, counted, silent


def privatize(
    source: Input,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    mechanism: str = "rr",
    max_labels_per_labeler: int | None = None,
    ties: Ties | None = None,
    tie_status_public: bool | None = None,
    label_values: str | None = None,
    skips: Skips | None = None,
    assignment_reactive: bool | None = None,
    bad_rows: Literal["stop", "quarantine"] = "stop",
    exhausted: Literal["refuse", "drop"] = "refuse",
    columns: Mapping[str, str] | None = None,
    namespace: str | None = None,
    question: str | None = None,
    unit: Unit | None = None,
    releases: int | None = None,
    again: bool = False,
    accept_delta: bool = False,
    output: str | Path | None = None,
    project: Where = None,
    workers: int | None = None,
    max_input_bytes: int | None = None,
    progress: Progress = silent,
    **choices: Any,
) -> Release:
    """Release a table of preference labels with labeler-level label differential privacy.

    `source` is a path, a glob, a list of paths, or a table (pyarrow, polars, pandas). The first
    call fixes the project's policy, unless one was made before (`labelguard.policies`); later calls
    release new labels under it, and labels released before keep their value at no cost. `columns`
    maps roles to column names; `namespace` names the source of these labelers' ids (default: that
    of `labelguard.toml`; see `labelguard.linking`); `question` names what was asked about every
    pair; `again` draws the latest submission of every label anew, as a new event with a new charge;
    `accept_delta` allows a δ of 1 over the number of units, or more; `output` is a directory that
    gets a copy of the release. `choices` are the mechanism's own: `methods.featured.FeatureOptions`
    of `statistic`, `methods.props.PropsOptions` of `props`.

    Guarantee: (ε, δ) of the policy for each of its units under `replace_labels`, over all releases
    that it pays for, against anyone without the project's keys (docs/concepts.md).

    Raises `InvalidLabels`, `PolicyError`, `BudgetExceeded`, `ProjectBusy`, `KeyProblem`,
    `LedgerError`, `ProjectError`; then nothing new was released.
    """
    home = located(project)
    home = replace(home, namespace=namespace or home.namespace)
    columns = {**home.columns, **(columns or {})}
    if mechanism == methods.AUTO:
        asked = methods.feature_options(choices)
        found = auto.choose(
            home,
            source,
            epsilon,
            delta,
            columns,
            asked,
            unit=unit or "labeler",
            question=question,
            skip_bad=bad_rows == "quarantine",
            max_input_bytes=max_input_bytes,
            progress=progress,
        )
        mechanism = found.mechanism
        max_labels_per_labeler = max_labels_per_labeler or found.max_labels_per_labeler
        if mechanism == "rr":
            if choices.get("also") is not None:
                raise PolicyError("auto chose rr, which has no head to label --also; leave it out")
            choices = {}
    method = methods.open_mechanism(mechanism, **choices)
    request = Request(
        epsilon,
        delta,
        ties,
        tie_status_public,
        unit,
        max_labels_per_labeler,
        method.priced,
        releases,
        label_values,
        skips,
        assignment_reactive,
    )
    options = Options(
        columns,
        question,
        bad_rows,
        exhausted,
        again,
        accept_delta,
        Path(output) if output else None,
        workers,
        max_input_bytes,
    )
    delivery.check(options.output)
    try:
        with OpenProject.job(home) as opened:
            return _Run(opened, method, request, options, progress).run(source)
    except (OSError, MemoryError) as error:
        raise ProjectError(
            f"cannot write in {home.state}: {getattr(error, 'strerror', None) or error}; "
            "nothing is lost: make room and run the same command again"
        ) from None


class _Run:
    """One run of `privatize`, under the project's lock."""

    def __init__(
        self,
        opened: OpenProject,
        mechanism: Mechanism,
        request: Request,
        options: Options,
        progress: Progress,
    ) -> None:
        self.opened, self.options = opened, options
        self.project, self.keys, self.ledger = opened.project, opened.keys, opened.ledger
        self.mechanism, self.progress = mechanism, progress
        self.workers = options.workers or os.cpu_count() or 1
        self.policy_id, self.policy = policies.for_request(self.ledger, request)
        self.event = mechanism.priced
        self.allowance = self.policy.allowance(self.event)
        self.job = Job(
            opened,
            self.policy,
            self.allowance,
            options.columns,
            options.question,
            options.bad_rows == "quarantine",
            options.again,
            self.workers,
            progress,
        )
        self.notes = judge.price(request, policies.total(self.ledger, self.policy))
        self.again = 0

    def run(self, source: Input) -> Release:
        staged = self._stage(source)
        if staged.refused_rows:
            who = counted(staged.refused_labelers, "retired or erased labeler")
            self.notes.append(f"{counted(staged.refused_rows, 'row')} of {who} left out")
        reads = admit(self.ledger, self.project.namespace, staged)
        further = self.mechanism.read(self.job, staged)
        key, record = self._request(staged.public_digest + further)
        if record and record.state == "committed":
            return self._answer(record, reused=True)
        delivery.check_new(self.options.output)
        self._judge(staged)
        epoch = self.ledger.begin_job()
        keep = record.id if record else None
        self.notes += recovery.settle(self.opened, keep, epoch)
        plan = self._plan(staged, record)
        recorded = record.settings["parameters"] if record else None
        parameters = self.mechanism.prepare(self.job, staged, plan, recorded)
        event = self._event(plan, key, parameters)
        grant = self.ledger.charge(event, self.policy, epoch, resumed=record)
        self.ledger.start(grant, epoch, reads)
        grant = self._draw(staged, plan, grant, epoch)
        rows, hashes = self._publish(staged, plan, grant)
        self._set_aside(staged, source, grant)
        self.ledger.commit(grant, epoch, rows, hashes)
        shutil.rmtree(self.project.stages / grant.release.id, ignore_errors=True)
        committed = self.ledger.release(grant.release.id)
        assert committed is not None
        return self._answer(committed)

    def _stage(self, source: Input) -> Staged:
        ties = self.policy.ties_of(self.event)
        public = ties if ties in ("drop", "half") else ""
        reading = layouts.Reading(
            self.options.columns,
            self.policy.unit,
            self.mechanism.features,
            question=self.options.question,
            values=LabelValues.parse(self.policy.label_values),
            skips=self.policy.skips,
        )
        options = StagingOptions(
            reading,
            self.project.namespace,
            self.options.bad_rows == "quarantine",
            public,
            groups.in_force(self.ledger, self.policy.unit),
            self.ledger.tombstones(),
            self.options.max_input_bytes,
        )
        self.project.work.mkdir(mode=0o700)
        return stage(
            source,
            self.project.work / "input",
            self.keys,
            options,
            lambda name, rows: self.progress(f"reading {name}: {rows:,} rows", None),
        )

    def _settings(self) -> dict[str, object]:
        return {
            "mechanism": self.mechanism.name,
            "mechanism_version": self.mechanism.version,
            "format": 1,
            "policy": self.policy_id,  # it fixes all that a `Request` may say
            "choices": self.mechanism.settings(),
            "exhausted": self.options.exhausted,
            "again": self.again,
        }

    def _request(self, public_digest: bytes) -> tuple[str, ReleaseRecord | None]:
        """The idempotency key of this request, and the release that it made before, if any.

        Each --again is an event of its own, counted per request; one that crashed is taken up.
        """
        self.again = 1 if self.options.again else 0
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
            refuse_conflicts(staged, self.options.columns.get("item_id", "item_id"))
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
            again=self.options.again,
            finished=record.id if record and drawn else None,
            earlier=recovery.known(self.ledger.releases(), self.event),
            bound=Bound.of(self.policy, self.event, named=staged.labelers or staged.recorded),
            workers=self.workers,
            progress=lambda share: self.progress("planning", share),
        )
        self.notes += judge.judge(
            replace(plan, units=self.keys.pseudonyms().hide(plan.units)),
            self.policy,
            self.event,
            people=len(blocks.unique(np.concatenate([plan.units, self.ledger.charged()]))[0]),
            drop=self.options.exhausted == "drop" or record is not None,
            resumed=record is not None,
            accept_delta=self.options.accept_delta,
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

    def _set_aside(self, staged: Staged, source: Input, grant: Grant) -> None:
        if staged.bad_rows:
            directory = self.project.quarantine / grant.release.id
            column = self.options.columns.get("labeler_id", "labeler_id")
            aside, name = parts(source), self.project.namespace
            scratch = self.project.work / "quarantine"
            quarantine.write(directory, aside, staged.bad_rows, scratch, column, name)
            rows = counted(staged.fault_count, "bad row")
            self.notes.append(f"{rows} set aside in {directory}")

    def _draw(self, staged: Staged, plan: Plan, grant: Grant, epoch: int) -> Grant:
        """Draw what is new into the private map, and let the ledger know that it is complete."""
        release = grant.release
        if plan.new > release.charged:
            raise LedgerError(f"release {release.id} was charged less than it would draw")
        if release.state == "drawn":
            self.mechanism.draw(self.job, staged, plan, grant, None)
            return grant
        private_map = PrivateMap(self.project.released, self.keys)
        begun = private_map.begin(release.id)
        self.mechanism.draw(self.job, staged, plan, grant, begun)
        return self.ledger.mark_drawn(grant, epoch, private_map.complete(release.id), plan.drawn)

    def _publish(self, staged: Staged, plan: Plan, grant: Grant) -> tuple[int, Mapping[str, str]]:
        finished = self.mechanism.finish(self.job, staged, plan, grant)
        return publish.publish(
            staged,
            plan,
            grant,
            self.project,
            self.policy,
            self.ledger.labelers(self.event),
            policies.standing(self.ledger),
            finished,
            workers=self.workers,
            progress=lambda share: self.progress("writing", share),
        )

    def _answer(self, record: ReleaseRecord, *, reused: bool = False) -> Release:
        path = self.project.releases / record.id
        broken = fault(path, record.files) if reused else None
        if broken:
            raise ProjectError(f"release {record.id}: {broken}; restore it from a backup")
        if self.options.output:
            delivery.deliver(path, self.options.output, record.files)
            path = self.options.output
        return Release(record.id, path, read_card(path), reused, tuple(self.notes))

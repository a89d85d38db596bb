"""`privatize`: raw preference labels in, a labeler-level private release out, its budget accounted.

The order of a release is read → plan → check → charge → draw → learn → publish, and each step can
crash:

1. the input is staged canonically, and the release's idempotency key computed from public columns;
   a request that was answered before is answered again without looking at labels;
2. rows, bounds and charges are planned and checked from public columns;
3. one ledger transaction charges and reserves; it yields the grant that the next steps need;
4. labels are randomized into the PRIVATE map, which is flushed and renamed as a whole; the ledger
   then marks the release as drawn, with the map's keyed digest, and the randomness, which was in
   memory only, is forgotten;
5. what a mechanism learns, it learns from released rows (`release.drawn`); where that takes long,
   other jobs may have the project meanwhile, and the scratch space with raw labels is gone before;
6. the output is written from the map and the public texts alone, flushed, renamed, committed.

A crash before the mark discards what was drawn, and the same command draws everything afresh:
nothing was visible, so one charge is right. After it, the map is taken as it is and no label is
read. So there is one charge and one answer, whatever happens, and no randomness to come back to.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import numpy as np

from labelguard import clock
from labelguard.budget import events, pricing
from labelguard.budget.policy import Bound
from labelguard.errors import LedgerError, NoProject, PolicyError, ProjectError
from labelguard.inputs.columns import merge_reading_options
from labelguard.inputs.sources import Input
from labelguard.inputs.staging import check_public_columns
from labelguard.inputs.turns import ReleasedTurns, check_turns, write_published
from labelguard.inputs.understood import refuse_unread_prompts
from labelguard.ledger.ledger import Grant
from labelguard.ledger.records import Charge, ReleaseRecord
from labelguard.ledger.sources import find_columns
from labelguard.project import attempts
from labelguard.project.opening import (
    OpenProject,
    Where,
    clean_up_after_crashes,
    init,
    locate_project,
)
from labelguard.project.private_map import count_rows
from labelguard.project.project import Project
from labelguard.release import card, selection
from labelguard.release.drawn import DrawnRelease, capture_card_facts, copy_and_return_release
from labelguard.release.intake import describe_input, quarantine_bad_rows, resolve_source
from labelguard.release.model_card import find_releases_of_settings
from labelguard.release.plan import (
    EARLIER_LEFT_OUT,
    Plan,
    Preview,
    admit_source,
    check_plan,
    check_price,
    check_ties_and_label_codes,
    describe_leavers,
    preview_release,
)
from labelguard.release.protocol import Mechanism, Prepared, ReleaseContext
from labelguard.release.request import (
    Keywords,
    Ours,
    ReleaseRequest,
    check_option_names,
    request_release,
)
from labelguard.release.resolve import identify_request, resolve_from_input, resolve_from_ledger
from labelguard.release.writer import Release, check_output, check_output_is_empty
from labelguard.storage import blocks
from labelguard.storage.buckets import check_seen
from labelguard.storage.executor import Workers, open_executor
from labelguard.text import Progress, no_progress

# Called with what a release will be before anything is charged; what it raises stops the run.
Review: TypeAlias = Callable[[Preview], None]


def privatize(
    source: Input | None = None,
    *,
    mechanism: Ours = "auto",
    namespace: str | None = None,
    project: Where = None,
    progress: Progress = no_progress,
    review: Review | None = None,
    **options: Unpack[Keywords],
) -> Release:
    """Release a table of preference labels with labeler-level label differential privacy.

    `source` is a path, a glob, a table (pyarrow, polars, pandas, datasets), splits by name, a list
    of these, or a list of rows (dictionaries); without one, what was ingested is released
    (`project.ingestion`). The first call fixes the project's policy, unless one was made before
    (`project.policies`): it says for how many releases (`once`, `uses` or `recurring`), and accepts
    a release of little use by `accept_little_use`. Later calls release new labels under it, and
    labels released before keep their value at no cost. `namespace` names the source of labelers'
    ids (default: that of `labelguard.toml`, or the only one ingested). `review` is called with a
    `Preview` before anything is charged, unless a run is taken up; what it raises stops the run.

    `options` are those of the command line (docs/cli.md), with `_` for `-`; `--for` is `duration`,
    `--public-column` `public_columns`. Those of another package's mechanism, unknown to type
    checkers, pass as a dictionary with it.

    Guarantee: (ε, δ) of the policy for each unit under `replace_labels`, over all releases that it
    pays for, against whoever sees neither raw labels nor a job's memory (docs/guarantees.md).

    Raises `InvalidLabels`, `PolicyError`, `BudgetExceeded`, `ProjectBusy`, `KeyProblem`,
    `LedgerError`, `ProjectError`; then nothing new was released.

    Example:
        >>> study = lg.init("study")
        >>> asked = {"label_values": "1-0", "epsilon": 3, "once": True}
        >>> made = lg.privatize("labels.parquet", **asked, project=study)
        >>> made.card["counts"]["rows"], made.card["privacy"]["epsilon"]
        (900, 3.0)
        >>> lg.privatize("labels.parquet", **asked, project=study).reused
        True
    """
    named = merge_reading_options(options)
    check_option_names(mechanism, named)
    home = locate_project(project)
    with attempts.record_attempt(home), explain_full_disk(home), contextlib.ExitStack() as claims:
        source, home, settings = resolve_source(source, home, namespace, named)
        request = request_release(home, mechanism, settings)
        check_output(request.output)
        with OpenProject.hold_for_job(home) as opened:
            run = Run(opened, request, progress, review)
            claims.callback(run.executor.close)
            release = run.draw_or_return(source)
            if isinstance(release, Release):
                return release
            if not release.prepared.long_running:
                return release.train().commit()
            release = release.detach_from_project(claims)
        return release.train().commit_after_training(home)


def plan(
    source: Input | None = None,
    *,
    mechanism: str = "auto",
    namespace: str | None = None,
    project: Where = None,
    progress: Progress = no_progress,
    **options: Any,
) -> Plan:
    """Return the plan of a release: what `privatize` would fix, charge and give.

    Takes what `privatize` takes but `review`, and raises what it raises; without a project, of one
    that would be made. Its rows are in a directory that the next command clears.
    """
    options = merge_reading_options(options)
    check_option_names(mechanism, options)
    with _open_project_or_temporary(project) as home, explain_full_disk(home):
        source, home, settings = resolve_source(source, home, namespace, options)
        request = request_release(home, mechanism, settings)
        with OpenProject.hold_for_job(home) as opened:
            run = Run(opened, request, progress)
            with contextlib.closing(run.executor):
                run.read_and_identify(source, forecast=True)
                plan, record = run.plan(), run.record
            reused = record.id if record and record.state == "committed" else None
            return replace(plan, preview=replace(plan.preview, reused=reused))


class Run:
    """One run of `privatize` as far as it needs raw labels: each step a method, in their order.

    It is under the project's lock. `read_and_identify` sets the `context` of the release, the
    idempotency `key` of the request, and the `record` of the release that this request made or
    began before.
    """

    context: ReleaseContext
    key: str
    record: ReleaseRecord | None

    def __init__(
        self,
        opened: OpenProject,
        request: ReleaseRequest,
        progress: Progress,
        review: Review | None = None,
    ) -> None:
        request = replace(request, intake=request.intake.recall(opened))
        self.opened, self.request, self.progress = opened, request, progress
        self.project, self.ledger = opened.project, opened.ledger
        self.review = review
        self.executor = open_executor(request.engine, request.workers, request.address)
        self.resolved = resolve_from_ledger(request, opened)
        maps = (self.project.private_maps / release_id for release_id in opened.map_digests)
        self.published = ReleasedTurns.read(maps)
        total = pricing.sum_budgets(self.ledger.policies.history() or [self.resolved.policy])
        self.notes = check_price(self.resolved.policy_request, total)

    @property
    def mechanism(self) -> Mechanism[Any]:
        """Return how labels are released: settled once the input was read."""
        assert self.resolved.mechanism is not None
        return self.resolved.mechanism

    def draw_or_return(self, source: Input) -> DrawnRelease | Release:
        """Read, plan, check, charge and draw; or return what this very request made before."""
        request, resolved = self.request, self.resolved
        recurs = resolved.policy.unit != "item"
        if resolved.makes_first_policy and recurs and not request.specifies_release_count:
            raise PolicyError(
                "a project's first release fixes how many releases share ε: give once=True if no "
                "more labels of the same people will come (it may spend all of ε), or uses=K, or "
                'recurring="weekly" and duration="1y"'
            )
        self.read_and_identify(source)
        record, output = self.record, self.request.output
        if record and record.state == "committed":
            self.project.clear_stages(record.id)  # a crash may have come before
            return copy_and_return_release(self.project, record, output, self.notes, reused=True)
        if record:
            self.project.check_free(record.id)
        check_output_is_empty(output)
        epoch = self.ledger.begin_job()
        self.notes += clean_up_after_crashes(self.opened, record.id if record else None, epoch)
        plan = self.plan()
        if record is None:
            self.notes = list(plan.preview.notes)
            poor = plan.preview.discouraged
            if self.review:
                self.review(plan.preview)
            elif poor and not request.accept_little_use:
                raise PolicyError(f"{poor}; to release it anyway: accept_little_use=True")
        parameters = record.settings["parameters"] if record else None
        prepared = self.mechanism.prepare(self.context, plan.rows, parameters)
        learned = find_releases_of_settings(self.mechanism.settings())
        grant = self.charge(source, plan, prepared, epoch)
        grant = self.draw(prepared, grant, epoch)
        self.notes += quarantine_bad_rows(self.project, self.context.staged, grant.release.id)
        facts = capture_card_facts(self.context, plan.rows, grant)
        if learned:
            facts["learned_from"] = [asdict(one) for one in learned]
        notes = tuple(self.notes)
        return DrawnRelease(
            self.context, self.mechanism, prepared, grant, epoch, facts, output, notes
        )

    def read_and_identify(self, source: Input, *, forecast: bool = False) -> None:
        """Stage the input, settle on what is done to it, and identify this request.

        `forecast`: what a first release may be expected to give is wanted.
        """
        opened, intake, resolved = self.opened, self.request.intake, self.resolved
        policy, columns = resolved.policy, resolved.columns
        staged = intake.stage_labels(
            opened,
            source,
            policy,
            resolved.event,
            columns,
            self.progress,
            self.executor,
            self.request.buckets,
        )
        check_turns(staged, resolved.turns, opened.keys, self.published)
        if resolved.makes_first_policy:  # later files may do without, or have more
            check_public_columns(staged, policy.public_columns)
        if not find_columns(self.ledger.people.sources(), self.project.namespace):
            refuse_unread_prompts(staged, intake.ignore_columns)
        ties = policy.ties_of(resolved.event)
        check_ties_and_label_codes(staged, ties, bool(intake.label_values))
        self.notes += describe_input(staged)
        declared = policy.public_columns
        further = intake.stage_further(
            opened, resolved.further_pairs, columns, declared, staged, self.progress
        )
        if resolved.makes_first_policy or resolved.mechanism is None:
            intake.check_usable(staged)  # forecasts may take long
        wanted = forecast or self.review is not None or not self.request.accept_little_use
        workers = Workers(self.executor, self.project.work)
        resolved = resolve_from_input(
            resolved, self.ledger, staged, self.progress, workers, forecast=wanted
        )
        self.admission = admit_source(self.ledger, self.project.namespace, staged)
        digest = staged.public_digest + (further.staged.public_digest if further else b"")
        self.resolved, identity = identify_request(resolved, opened, digest)
        self.key, self.record, self.again = identity.key, identity.record, identity.again
        if self.record is None or self.record.state != "committed":
            intake.check_usable(staged)
        outcomes = self.project.work / "outcomes"
        outcomes.mkdir(mode=0o700, exist_ok=True)
        self.context = ReleaseContext(
            opened,
            self.resolved.policy,
            self.resolved.allowance,
            self.request.again,
            self.executor,
            self.progress,
            staged,
            further,
            outcomes,
            self.resolved.featured,
        )

    def plan(self) -> Plan:
        """Select and price rows, and check what they would charge; from public columns alone."""
        event, part, record = self.resolved.event, self.mechanism.part, self.record
        policy, staged = self.resolved.policy, self.context.staged
        begun = record if record and record.state != "committed" else None
        drawn = begun if begun and begun.state == "drawn" else None
        allows_reuse_of_labels = events.find_event_kind(event).allows_reuse_of_labels
        earlier = [  # kinds of events do not know each other's labels
            released
            for released in self.ledger.releases.all()
            if released.map and released.event == event and allows_reuse_of_labels(released.state)
        ]
        rows = selection.plan_rows(
            staged,
            self.project,
            self.opened.keys,
            self.ledger.releases.labelers(event, excluding=None if drawn else begun),
            again=self.request.again,
            finished=drawn.id if drawn else None,
            earlier=[released.id for released in earlier],
            bound=Bound.of(
                policy,
                event,
                self.request.max_labels_per_labeler,
                named=staged.labelers or staged.recorded,
            ),
            part=part,
            held_out=policy.held_out,
            executor=self.executor,
            progress=lambda share: self.progress("planning", share),
        )
        self.notes += check_plan(
            rows,
            policy,
            event,
            part,
            self.ledger,
            people=len(
                blocks.unique(np.concatenate([rows.units, self.ledger.releases.charged_units()]))[0]
            ),
            drop=self.request.exhausted == "drop" or begun is not None,
            resumed=begun is not None,
            accept_delta=self.request.accept_delta,
        )
        is_known = part == "training" and any(released.part == part for released in earlier)
        if is_known and 0 < rows.drawn == rows.rows and not (drawn or self.request.again):
            self.notes.append(EARLIER_LEFT_OUT)
        if events.find_event_kind(event).keeps_values:
            self.notes += describe_leavers(earlier, self.ledger.people.departures())
        prices = self.context.find_or_calibrate_prices()
        if record is None:
            self.mechanism.check(self.context)
        charged = self.ledger.releases.labelers(event, excluding=None)
        preview = preview_release(
            self.resolved, self.context, self.key, rows, prices, charged, self.notes
        )
        return Plan(rows, prices, preview)

    def charge(self, source: Input, plan: Plan, prepared: Prepared, epoch: int) -> Grant:
        """Charge and reserve in one transaction of the ledger; return the grant of what follows."""
        settings = self.resolved.settings(self.again) | selection.collect_ledger_counts(plan.rows)
        settings["parameters"] = dict(prepared.parameters)
        settings["request"] = self.request.describe_for_retraining(
            self.mechanism.name, source, self.project
        )
        if plan.preview.discouraged:
            settings["discouraged"] = plan.preview.discouraged
        if forecast := self.resolved.forecast:
            expected = {"accuracy": forecast.accuracy, "label_error": forecast.label_error}
            settings["forecast"] = {name: asdict(value) for name, value in expected.items()}
        if judges := self.resolved.judges:
            settings["judges"] = asdict(judges)
        event, staged = self.resolved.event, self.context.staged
        made_up = ReleaseRecord(
            "", 0, self.key, 0, event, "computing", clock.now(), settings, 0, None, {}
        )
        common = card.build_common_card(staged, self.resolved.policy, plan.rows, made_up, 0, 0)
        card.check_page(common, str(self.mechanism.settings().get("features", "")))
        charge = Charge(
            mechanism=self.mechanism.name,
            event=self.resolved.event,
            idempotency_key=self.key,
            settings=settings,
            labelers=plan.rows.units,
            capacity=plan.rows.capacity,
            charged=plan.rows.charged,
            prices=plan.prices,
        )
        policy = self.context.policy
        grant = self.ledger.charge(charge, policy, epoch, resumed=self.record)
        self.ledger.mark_reading(grant, epoch, self.admission)
        return grant

    def draw(self, prepared: Prepared, grant: Grant, epoch: int) -> Grant:
        """Draw what is new into the private map, and mark in the ledger that it is complete."""
        release, planned = grant.release, prepared.plan
        if planned.new_uses > release.charged:
            raise LedgerError(f"release {release.id} was charged less than it would draw")
        if release.state == "drawn":
            self.mechanism.draw(self.context, prepared, grant, None)
            return grant
        private_map = self.opened.private_map
        directory = private_map.begin(release.id)
        self.mechanism.draw(self.context, prepared, grant, directory)
        if self.resolved.turns != "independent":
            write_published(directory, self.context.staged, self.opened.keys, self.published)
        # What lacks here would be drawn a second time by the next release.
        check_seen(planned.drawn, count_rows(directory), "drawn labels")
        digest = private_map.complete(release.id, directory)
        return self.ledger.mark_drawn(grant, epoch, digest, planned.drawn)


@contextlib.contextmanager
def _open_project_or_temporary(where: Where) -> Iterator[Project]:
    """Yield the project, or a temporary one where there is none."""
    try:
        home = locate_project(where)
    except NoProject:
        # What the environment names belongs to a project that is there, or should be.
        elsewhere = ("LABELGUARD_KEY", "LABELGUARD_LEDGER")
        if where is not None or any(name.startswith(elsewhere) for name in os.environ):
            raise
    else:
        yield home
        return
    with tempfile.TemporaryDirectory(prefix="labelguard-") as directory:
        yield init(Path(directory), lasting=False)


@contextlib.contextmanager
def explain_full_disk(home: Project) -> Iterator[None]:
    """Raise `ProjectError` for a full disk or memory, saying what it means for a release."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise ProjectError(
            f"cannot write in {home.state}: {getattr(error, 'strerror', None) or error}; "
            "nothing is lost: make room and run the same command again"
        ) from None

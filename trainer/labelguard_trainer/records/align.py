"""Alignment on whole records: demonstrations, preferences and prompts of people are private.

The order is read who there is → check → charge → read what they wrote → train → publish. Everybody
pays for each stage that they have records in, whoever a step happened to draw: a policy that allows
one stage is parallel composition, and refuses a person in two parts; one that allows three adds.
The same recipe and the same people are the same request: it is answered once, whatever the files
hold by then, and a run that was killed goes on (see `gradient.loop`).

Nothing on the way depends on what people wrote: not charges, names, errors, sizes or times of
steps. What comes out is noised models and a card.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.budget import pricing
from labelguard.budget.events import RECORDS
from labelguard.budget.policy import Policy
from labelguard.budget.pricing import Total
from labelguard.errors import BudgetExceeded, LabelguardError, PolicyError
from labelguard.ledger.ledger import Grant
from labelguard.ledger.records import Charge, ReleaseRecord
from labelguard.processes import require_one_process
from labelguard.project import attempts, opening, policies, policy_facts
from labelguard.project.opening import OpenProject, Where, locate_project
from labelguard.project.project import STATE
from labelguard.release.model_card import LearnedRelease, find_learned_releases
from labelguard.release.privatize import explain_full_disk
from labelguard.release.writer import (
    ReleaseWriter,
    check_output,
    check_output_is_empty,
    copy_release,
    read_card,
)
from labelguard.storage.files import find_changed_file, fresh_directory
from labelguard.text import Progress, no_progress, pluralize
from labelguard_trainer.records import card
from labelguard_trainer.records.people import Part, read_people
from labelguard_trainer.records.recipe import RecordsRecipe, check_terms
from labelguard_trainer.records.stages import RecordStage, RewardModel, StageRuns
from labelguard_trainer.training import models
from labelguard_trainer.training.settings import StageName, hide_directory

MECHANISM = "align"
_MARK = "models.json"


@dataclass(frozen=True)
class RecordsResult:
    """Models that learned from people's records."""

    # their directory: one model for each stage, card.json and CARD.md
    path: str
    # the release that was charged for them
    release: str
    # ε of each user or record, all stages together
    epsilon: float
    # its δ
    delta: float
    # user or record
    unit: str
    # whether the same recipe had made them before: nothing was read or charged
    reused: bool
    # each stage: its name, people, records and steps
    stages: list[dict[str, Any]]
    # what the user should know
    notes: list[str]


def align_records(
    recipe: str | Path,
    *,
    output: str | Path | None = None,
    project: Where = None,
    progress: Progress = no_progress,
) -> RecordsResult:
    """Align a language model on whole records of people, by the recipe in a YAML file.

    Guarantee: (ε, δ) of the recipe for each user, or record, under `zero_out`: all their records in
    all parts are there or null; who takes part, and with how many records, is public
    (docs/mechanisms.md). The models stay in the project, and a copy goes to `output`.

    Raises `PolicyError` for terms that the project's policy does not have, or a person in more
    stages than it allows, `BudgetExceeded` for people who lack allowance, `InvalidLabels` for files
    that are no records, `LabelguardError` for models and settings; then nothing was charged.
    """
    require_one_process("alignment on whole records")  # each would draw noise of its own
    place = None if output is None else Path(output)
    home = locate_project(project)
    with attempts.record_attempt(home), explain_full_disk(home):
        request = RecordsRecipe.read(Path(recipe))
        check_output(place)
        with OpenProject.hold_for_job(home) as opened:
            return RecordsRun(opened, request, place, progress).go()


class RecordsRun:
    """One run, under the project's lock."""

    def __init__(
        self, opened: OpenProject, recipe: RecordsRecipe, output: Path | None, progress: Progress
    ) -> None:
        self.opened, self.recipe, self.output, self.progress = opened, recipe, output, progress
        self.ledger = opened.ledger
        self.policy = self._resolve_policy()
        progress("reading ids", None)
        self.people = read_people(recipe, opened)
        self.stages = self._prepare_stages()
        self.key = self._compute_request_key()
        self.record = self.ledger.releases.find(self.key)

    def go(self) -> RecordsResult:
        """Do what is to be done, or return what this request made before."""
        record = self.record
        if record and record.state == "committed":
            self.opened.project.clear_stages(record.id)
            return self._deliver(record, [], reused=True)
        check_output_is_empty(self.output)
        epoch = self.ledger.begin_job()
        notes = opening.clean_up_after_crashes(self.opened, record.id if record else None, epoch)
        for stage in self.stages.values():
            self.progress(f"trying out the model, stage {stage.name}", None)
            judge = self.stages["reward"].model if "reward" in self.stages else None
            stage.rehearse(self._open_reward(judge, stage) if stage.name == "rl" else None)
        grant = self._charge(epoch)
        self.ledger.mark_reading(grant, epoch, self.people.admission)
        runs = self._open_stage_runs(grant)
        for part in self.people.parts:
            self._train(part, runs, grant)
        self._publish(runs, grant, epoch)
        done = self.ledger.releases.get(grant.release.id)
        assert done is not None
        return self._deliver(done, notes, reused=False)

    def _resolve_policy(self) -> Policy:
        active = policies.find_policy_in_force(self.ledger)
        if active is not None:
            check_terms(self.recipe, active.policy)
            return active.policy
        policy = self.recipe.policy
        self.ledger.policies.ceiling().check(Total(policy.epsilon, policy.delta))
        return policy

    def _prepare_stages(self) -> dict[StageName, RecordStage]:
        """Return the stages that read records; of one that begins from another, as of its base."""
        recipe, reward = self.recipe, self.recipe.reward
        begun = (recipe.model, *((reward.base, reward.public) if reward else ()))
        learned = [one for model in begun if model for one in self._learned_from(model)]
        self.learned = tuple({one.sums: one for one in learned}.values())
        bases: dict[StageName, str] = dict.fromkeys(("sft", "reward", "rl"), recipe.model)
        if reward and reward.base:
            bases["reward"] = reward.base
        terms = recipe.records_a_step, recipe.updates
        return {
            name: RecordStage.of(name, bases[name], recipe.decisive(name), *terms)
            for name, *_ in recipe.sources()
        }

    def _learned_from(self, model: str) -> tuple[LearnedRelease, ...]:
        """Return the releases of this project that a base learned from.

        Raises `LabelguardError` for one that learned from private data of another project, or from
        a run that has not published it: what it learned from, no card says yet.
        """
        _, *inside = Path(model).resolve().as_posix().split(f"/{STATE}/")
        if inside and not inside[-1].startswith("releases/"):
            raise LabelguardError(
                f"{model} is private until its run is finished; begin from a model that was "
                "published"
            )
        releases = find_learned_releases(model, private=True)
        for learned in releases:
            if self.ledger.releases.get(learned.release) is None:
                raise LabelguardError(
                    f"{model} learned from {learned.release}, which is not of this project: what "
                    "both promise does not add up; begin from a public model"
                )
        return releases

    def _compute_request_key(self) -> str:
        """Return the idempotency key: what decides the models, but for what people wrote."""
        active = policies.find_policy_in_force(self.ledger)
        public = self.recipe.reward.public if self.recipe.reward else None
        self.judge = models.identity(public) if public else ""
        decisive = {
            "policy": active.id if active else 1,
            "records_a_step": self.recipe.records_a_step,
            "reward": self.judge,
            "stages": {
                name: [stage.identity, self.recipe.decisive(name)]
                for name, stage in self.stages.items()
            },
            "people": {part.name: part.record_counts_digest for part in self.people.parts},
        }
        text = json.dumps(decisive, sort_keys=True).encode()
        return self.opened.keys.mac("records", text).hex()

    def _charge(self, epoch: int) -> Grant:
        """Charge everybody for each stage that they are in, or take up what was charged."""
        people, event = self.people, RECORDS.name
        allowed = self.policy.allowance(event).allowed
        capacity = np.full(len(people.units), allowed, np.int64)
        if self.record is None:
            self._check_allowance(capacity)
        prices = self.ledger.policies.prices(event)
        if not prices:
            self.progress("calibrating", None)
            prices = pricing.compute_prices(self.policy, event)
        settings = {
            "mechanism": MECHANISM,
            "mechanism_version": 1,
            "choices": {name: self.recipe.decisive(name) for name in self.stages},
            "parameters": {},
            "labelers": len(people.units),
        }
        charge = Charge(
            *(MECHANISM, event, self.key, settings),
            *(people.units, capacity, people.stages, prices),
        )
        return self.ledger.charge(charge, self.policy, epoch, resumed=self.record)

    def _check_allowance(self, capacity: NDArray[np.int64]) -> None:
        """Raise what is wrong with who would be charged."""
        people, unit = self.people, self.recipe.unit
        if self.policy.delta >= 1 / len(people.units):
            raise PolicyError(
                f"delta {self.policy.delta:g} is not below 1/{len(people.units)}, one over the "
                f"number of {unit}s: that much δ allows giving one of them away; take less"
            )
        several = int((people.stages > capacity).sum())
        if several:
            raise PolicyError(
                f"{pluralize(several, unit)} of {len(people.units):,} would be in more stages than "
                f"the {capacity[0]} that the policy pays for; give everybody one part, by their "
                f"ids, or state stages: {people.stages.max()} in a project's first recipe, which "
                "adds the prices"
            )
        _, used = self.ledger.releases.labelers(RECORDS.name).find_usage(people.units)
        short = int((used + people.stages > capacity).sum())
        if short:
            most = int(people.stages.max())
            offer = policy_facts.suggest_next_policy(self.ledger, self.policy, RECORDS.name, most)
            raise BudgetExceeded(
                f"{short:,} of {pluralize(len(people.units), unit)} have no stage left that this "
                f"project's policy pays for; nothing was charged or trained; pay for more: {offer}",
                requested=int(people.stages.sum()),
                left=0,
            )

    def _open_stage_runs(self, grant: Grant) -> StageRuns:
        keys, identity = self.opened.keys, grant.release.id.encode()
        directory = self.opened.project.stages / grant.release.id
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return StageRuns(
            directory, lambda data: keys.mac("stage", identity + b" " + data), self.progress
        )

    def _train(self, part: Part, runs: StageRuns, grant: Grant) -> None:
        """Train a stage from what the stage before left."""
        stage, sft = self.stages[part.name], runs.find_finished("sft")
        reward = self.recipe.reward
        begun = part.name == "rl" or not (reward and reward.base)
        if sft and part.name != "sft" and begun:
            identity = models.identity(str(sft))
            config = {**stage.config, "model_init_kwargs": {}}
            stage = replace(stage, model=str(sft), identity=identity, config=config)
            self.stages[part.name] = stage

        def judge() -> Any:
            if part.name != "rl":
                return None
            if reward and reward.public:
                models.check_unchanged(reward.public, self.judge)
            return self._open_reward(str(runs.find_finished("reward")), stage)

        [price] = grant.prices.values()
        runs.train(stage, part, self.people.admission.columns["labeler_id"], price, judge)

    def _open_reward(self, trained: str | None, stage: RecordStage) -> RewardModel:
        """Return the recipe's public reward, as it was identified; else that in a directory."""
        reward = self.recipe.reward
        if reward and reward.public:
            return RewardModel(reward.public, stage.model, self.judge)
        assert trained is not None
        return RewardModel(trained, stage.model)

    def _publish(self, runs: StageRuns, grant: Grant, epoch: int) -> None:
        """Write models and card as a release, and commit it."""
        project, private_map = self.opened.project, self.opened.private_map
        names = [part.name for part in self.people.parts]
        if grant.release.state != "drawn":
            directory = private_map.begin(grant.release.id)
            (directory / _MARK).write_text(json.dumps(names))
            digest = private_map.complete(grant.release.id, directory)
            grant = self.ledger.mark_drawn(grant, epoch, digest, grant.release.charged)
        facts = card.facts(self.opened, self.policy, grant, self.people, self.stages)
        if self.recipe.reward and (reward := self.recipe.reward.public):
            facts["training"]["reward"] = {"model": hide_directory(reward), "identity": self.judge}
        if self.learned:
            facts["learned_from"] = [asdict(one) for one in self.learned]
        work = fresh_directory(project.work / "models")
        with ReleaseWriter(grant, project.releases) as writer:
            finished = [runs.find_finished(name) for name in names]
            for path in card.copy_models_with_cards(work, finished, facts, self.recipe.model):
                writer.move_in(path)
        self.opened.ledger.commit(grant, epoch, 0, writer.hashes)
        project.clear_stages(grant.release.id)

    def _deliver(self, record: ReleaseRecord, notes: list[str], *, reused: bool) -> RecordsResult:
        path = self.opened.project.releases / record.id
        if broken := find_changed_file(path, record.files) if reused else None:
            raise LabelguardError(f"release {record.id}: {broken}; restore it from a backup")
        if self.output:
            copy_release(path, self.output, record.files)
        made = read_card(path)
        privacy = made["privacy"]
        return RecordsResult(
            *(str(self.output or path), record.id, privacy["epsilon"], privacy["delta"]),
            *(privacy["unit"], reused, made["training"]["stages"], notes),
        )

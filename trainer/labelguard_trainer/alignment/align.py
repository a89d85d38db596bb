"""Alignment by a recipe: supervised fine-tuning, a reward, reinforcement learning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from labelguard import extras
from labelguard.analysis.reward import ReleaseReward, reward
from labelguard.errors import LabelguardError
from labelguard.processes import is_first_process, require_one_process
from labelguard.project.opening import Where
from labelguard.release.card import format_guarantee
from labelguard.release.head import FILE
from labelguard.release.model_card import (
    LearnedRelease,
    find_learned_releases,
    front_matter,
    list_learned_releases,
)
from labelguard.storage.files import check_output_directory, write_atomically
from labelguard.text import Progress, escape_controls, format_budget, no_progress, read_template
from labelguard_trainer.alignment.contents import read_contents, read_prompts
from labelguard_trainer.alignment.recipe import Recipe
from labelguard_trainer.alignment.stages import AlignmentStage, fine_tune, train_policy
from labelguard_trainer.training import fitting, models
from labelguard_trainer.training.request import Source, TrainingRequest, open_release
from labelguard_trainer.training.runs import RunDirectory
from labelguard_trainer.training.settings import StageName, hide_directory, replace_model_in_spec

_TEMPLATE = Path(__file__).with_name("alignment_card.md.j2")
_MEANING = {
    "reward": "mean reward",
    "kl": "KL from the model it began from, nats a token",
    "distance": "distance from labeled responses (1: as these)",
    "length": "tokens of a response",
}


@dataclass(frozen=True)
class AlignmentResult:
    """An alignment, as far as it is done."""

    # the directory with its stages
    path: str
    # the release that it learned from
    release: str
    # ε of the release, which is the model's too if its base is public
    epsilon: float
    # its δ
    delta: float
    # what it protects as a whole
    unit: str
    # where the reward comes from
    reward: str
    # the stages that are done, oldest first
    stages: list[AlignmentStage]
    # what the user should know
    notes: list[str]


def align(
    recipe: str | Path,
    *,
    output: str | Path,
    stage: StageName | None = None,
    project: Where = None,
    progress: Progress = no_progress,
) -> AlignmentResult:
    """Align a language model with a release, by the recipe in a YAML file.

    Stages `sft`, `reward` and `rl`, or one `stage` alone, on what the others left in the directory
    `output`. The same call goes on after an interruption, and does nothing again that is done.
    Under `accelerate launch` every process calls it, for `sft` or `reward` alone.

    Guarantee: post-processing. It reads a release, public files and no raw label, so the models
    have the release's (ε, δ), if their base is public too. Raises `LabelguardError` for a recipe
    that cannot be followed.
    """
    if stage not in (None, *get_args(StageName)):
        raise LabelguardError(f"a stage is sft, reward or rl, found {stage!r}")
    extras.require_extra("train", "labelguard align")
    if stage in (None, "rl"):  # each process would draw responses of its own, and stop on its own
        require_one_process(
            "the stage rl (several may do sft and reward, each alone: labelguard align sft)"
        )
    run = _Alignment(Recipe.read(Path(recipe)), Path(output), project, progress)
    return run.run_stages([stage] if stage else list(get_args(StageName)))


class _Alignment:
    """A recipe, the release that it names, and the directory of its stages."""

    def __init__(self, recipe: Recipe, output: Path, project: Where, progress: Progress) -> None:
        self.recipe = recipe
        self.output = output
        self.progress = progress
        progress("reading the release", None)
        self.source = open_release(recipe.release, project)
        assert self.source.card is not None
        self.card: Mapping[str, Any] = self.source.card
        # Of a synthesis the release that it was labeled by, and after it what else it learned from.
        self.own = list_learned_releases(self.card, self.source.digest)
        self.base = find_learned_releases(recipe.model, private=True)
        self.reward_model = output / "reward" if recipe.reward.base else None
        check_output_directory(output, "models")

    def run_stages(self, stages: Sequence[StageName]) -> AlignmentResult:
        """Do the stages, in their order."""
        recipe, done = self.recipe, []
        if stages == ["sft"] and recipe.sft is None:
            raise LabelguardError("the recipe has no stage sft")
        # What is wrong with the reward shows before anything is trained.
        if recipe.reward.base is None:
            self._open_reward()
        self.output.mkdir(exist_ok=True)
        # What a policy begins from is of this recipe, or refused.
        if recipe.sft is not None and ("sft" in stages or self._will_rl_reuse("sft", stages)):
            tuned = self._fine_tune()
            done += [tuned] if "sft" in stages else []
        if recipe.reward.base and ("reward" in stages or self._will_rl_reuse("reward", stages)):
            self._train_reward(recipe.reward.base)
        if "rl" in stages:
            done.append(self._train_policy())
        privacy = self.card["privacy"]
        return AlignmentResult(
            path=str(self.output),
            release=str(self.card["release"]),
            epsilon=privacy["epsilon"],
            delta=privacy["delta"],
            unit=str(privacy["unit"]),
            reward=self._describe_reward(),
            stages=done,
            notes=[*self._note_added_prices(done), *_note_distant_responses(done)],
        )

    def _will_rl_reuse(self, earlier_stage: StageName, stages: Sequence[StageName]) -> bool:
        """Return True if a policy is to be trained on a stage that was done before."""
        return "rl" in stages and (self.output / earlier_stage).exists()

    def _note_added_prices(self, stages: Sequence[AlignmentStage]) -> list[str]:
        """Return the note on releases whose prices add, if there are any."""
        learned = self._merge_releases(
            *(find_learned_releases(stage.path, private=True) for stage in stages)
        )
        others = [one.release for one in learned if one.sums != self.own[0].sums]
        if not others:
            return []
        return [f"also learned from {', '.join(others)}, whose prices add: see TRAINING_CARD.md"]

    def _fine_tune(self) -> AlignmentStage:
        recipe = self.recipe.sft
        assert recipe is not None
        if recipe.demonstrations is None:
            prompts, responses = read_contents(self.source.file, "prompt", "chosen")
            learned = self._merge_releases(self.base, self.own)
            what = "rows of the release: prompts, and the responses that it prefers"
        else:
            file = Path(recipe.demonstrations)
            prompts, responses = read_contents(file, "prompt", "response")
            learned, what = self.base, "public demonstrations"
        output = self.output / "sft"
        write_card = partial(self._render_card, learned, {"demonstrations": what})
        return fine_tune(
            *(recipe, self.recipe.model, prompts, responses, output, write_card, self.progress)
        )

    def _train_reward(self, base: str) -> None:
        recipe, output = self.recipe.reward, self.output / "reward"
        record = self.output / "reward.json"
        parameters = {
            "release": self.source.digest,
            "identity": models.identity(base),
            **recipe.model_dump(exclude={"mix"}),
        }
        text = json.dumps(parameters, indent=2, default=dict).encode()
        if output.exists():
            if not record.is_file() or record.read_bytes() != text:
                raise LabelguardError(
                    f"{output} is of another recipe; remove it and what was trained after it, or "
                    "choose another -o"
                )
            return
        request = TrainingRequest.read(
            *("reward", Source(self.source.file, self.source.digest, self.card), base),
            loss=recipe.loss,
            config=None,
            lora=recipe.lora,
            holdout=0.1,
            eval_pairs=1000,
            probes=None,
        )
        if is_first_process():
            write_atomically(record, text)
        fitting.fit(
            replace(request, config=dict(recipe.config)), RunDirectory(output), self.progress
        )
        if is_first_process():
            write_atomically(record, text)  # again: another recipe may have been refused meanwhile

    def _train_policy(self) -> AlignmentStage:
        model = self.recipe.model
        if self.recipe.sft is not None:
            model = str(self.output / "sft")
            if not Path(model).is_dir():
                raise LabelguardError(f"{model} is not there yet; run the stage sft first")
        given = self._open_reward()
        learned = self._merge_releases(
            find_learned_releases(model, private=True), given.learned_from
        )
        prompts = read_prompts(
            self.source.file if self.recipe.prompts is None else Path(self.recipe.prompts)
        )
        write_card = partial(self._render_card, learned, {"reward": self._describe_reward()})
        return train_policy(
            *(self.recipe.rl, model, given, prompts, self.output / "rl", write_card, self.progress),
            identity={
                "release": self.source.digest,
                "model": self.reward_model and models.identity(str(self.reward_model)),
                "mix": {
                    replace_model_in_spec(name, _identify_directory): weight
                    for name, weight in self.recipe.reward.mix.items()
                },
            },
        )

    def _open_reward(self) -> ReleaseReward:
        release, model = self.source.file.parent, self.reward_model
        if model is not None and not model.is_dir():
            raise LabelguardError(f"{model} is not there yet; run the stage reward first")
        if model is None and not any((release / name).exists() for name in (FILE, "model")):
            raise LabelguardError(
                f"{release.name} holds labels, which give no reward; name in the recipe what to "
                "train a reward model from (reward: base:)"
            )
        given = reward(
            model or release,
            mix=self.recipe.reward.mix,
            reference=None if model is None else release,  # else those of the head itself
        )
        if self.own[0].sums not in {one.sums for one in given.learned_from}:
            raise LabelguardError(
                f"the card in {model} does not name {self.card['release']}; remove the directory "
                "and what was trained after it, or choose another -o"
            )
        return given

    def _describe_reward(self) -> str:
        own = "its own head or model" if self.reward_model is None else "a reward model on it"
        parts = self.recipe.reward.mix.items()
        mix = "".join(
            f", {weight:+g} × {replace_model_in_spec(name, hide_directory)}"
            for name, weight in parts
        )
        return f"{self.card['release']}, {own}{mix}"

    def _merge_releases(self, *learned: tuple[LearnedRelease, ...]) -> tuple[LearnedRelease, ...]:
        """Return releases without repetitions: one release is one price."""
        return tuple({one.sums: one for some in learned for one in some}.values())

    def _render_card(
        self,
        learned: tuple[LearnedRelease, ...],
        words: Mapping[str, str],
        result: AlignmentStage,
        parameters: Mapping[str, Any],
    ) -> str:
        model = self.recipe.model
        of_release = any(one.sums == self.own[0].sums for one in learned)
        return read_template(_TEMPLATE).render(
            card=self.card if of_release else None,
            config=parameters["config"],
            front_matter=front_matter(learned, model) if learned else "",
            guarantee=format_guarantee(self.card),
            learned=[
                {"release": one.release, "unit": one.unit, "price": format_budget(asdict(one))}
                for one in learned
            ],
            meaning=_MEANING,
            model=escape_controls(hide_directory(model)).replace("`", "'"),
            parameters=parameters,
            result=result,
            **{"demonstrations": "", "reward": "", **words},
        )


def _identify_directory(model: str) -> str:
    """Return what tells a model from others: of a directory, its contents."""
    return models.identity(model) if Path(model).is_dir() else model


def _note_distant_responses(stages: Sequence[AlignmentStage]) -> list[str]:
    notes = []
    for stage in stages:
        before, after = stage.before.get("distance"), stage.after.get("distance")
        if before and after and after > 1.5 * before:
            notes.append(
                f"responses are {after / before:.1f} times as far from the labeled ones as before "
                "training: the reward may be wrong about them; lower max_kl, or ask people"
            )
    return notes

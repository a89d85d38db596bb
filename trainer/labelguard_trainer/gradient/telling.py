"""What a gradient mechanism says of its release, in card and report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from labelguard.policy.training_runs import AUP, ELS, ELS_GROUP, ULS
from labelguard.release import card as cards
from labelguard.release.protocol import Job
from labelguard.release.sections import Section
from labelguard_trainer.gradient.aup import AupCourse
from labelguard_trainer.gradient.course import Course
from labelguard_trainer.gradient.options import GradientOptions, UlsOptions

__all__ = ["DISCRETE", "card", "sections"]

DISCRETE = (
    "what it may tell that noise drawn in floating point is discrete: the guarantee is that of "
    "continuous noise, and covers how far its values reach, not which of them there are"
)
"""What the guarantee of a language model does not cover."""

_ACCOUNTING = {
    ULS.name: "Poisson-subsampled Gaussian mechanism over labelers, privacy loss distribution",
    ELS.name: "Poisson-subsampled Gaussian mechanism over labels, the smaller of two bounds",
    ELS_GROUP.name: "Poisson-subsampled Gaussian mechanism over labels, group privacy",
    AUP.name: "as published (AUP-RLHF, theorem 3), NOT PROVEN",
}


def card(
    job: Job,
    options: GradientOptions,
    course: Course | AupCourse,
    halted: Any,
    learner: Mapping[str, Any],
) -> dict[str, Any]:
    """The sections of a card; all of it public, but for the step of a halt, which was released."""
    kind = options.kind
    run: dict[str, Any] = {
        "learner": options.learner,
        "noise_multiplier": course.noise_multiplier,
        "sampling_probability": course.threshold / 2**64,
        "steps": course.steps,
        "sampled": "labels" if kind.by_record else job.policy.unit + "s",
        "population": course.units,
        **learner,
    }
    if isinstance(course, AupCourse):
        run |= {"distance": course.distance, "steps_done": int(halted), "proven": False}
    else:
        run["clip"] = course.clip
    if isinstance(options, UlsOptions):
        run["weighting"] = options.weighting
    if job.allowance.sampling and job.allowance.sampling.records:
        run["records"] = job.allowance.sampling.records
    head = options.learner == "head"
    return {
        "kind": "teacher" if head else "model",
        "train_with": "soft",
        "privacy": {
            "accounting": f"{_ACCOUNTING[kind.name]}, {job.allowance.allowed} per "
            f"{job.policy.unit}" + cards.together(job.policy, kind.name)
        },
        "training": run,
        "not_protected": [] if head else [DISCRETE],
    }


def sections(said: Mapping[str, Any]) -> Iterator[Section]:
    """Of a run: how it was sampled, its noise, and what is published of it."""
    run, unit = said["training"], said["privacy"]["unit"]
    words = [
        f"A model learned in {run['steps']:,} steps. In each, {run['sampled']} were drawn by "
        "secret coins, what each contributed was bounded, and noise was added to the sum; every "
        f"{unit} is charged the whole run, drawn or not. The labels of this release are the "
        "model's own.",
    ]
    if run.get("proven") is False:
        words.append(
            "The guarantee of this mechanism is as published, and NOT PROVEN: this release rests "
            "on it because its policy accepts that."
        )
        done = run["steps_done"]
        if done < run["steps"]:
            words.append(f"It halted after {done:,} steps: a cohort was not concentrated.")
    yield Section(
        "training",
        "A model trained under differential privacy",
        tuple(words),
        facts=(
            ("sampling probability", f"{run['sampling_probability']:.4g}"),
            ("steps", f"{run['steps']:,}"),
            ("noise multiplier", f"{run['noise_multiplier']:.4f}"),
            ("noise", run["noise_drawn"]),
        ),
    )

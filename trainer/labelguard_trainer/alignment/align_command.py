"""`labelguard align`: a language model aligned by a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labelguard.cli.options import Command, directory_option, project_option
from labelguard.cli.terminal import format_relative_path, print_facts, print_notes, prints
from labelguard.text import format_budget
from labelguard_trainer.training.command import silence_other_processes

if TYPE_CHECKING:
    from labelguard_trainer.alignment.align import AlignmentResult
    from labelguard_trainer.alignment.stages import AlignmentStage
    from labelguard_trainer.records.align import RecordsResult

_STAGES = ("sft", "reward", "rl")


def _print_result(value: AlignmentResult | RecordsResult) -> None:
    from labelguard_trainer.alignment.align import AlignmentResult

    print_facts(
        _facts(value) if isinstance(value, AlignmentResult) else _list_facts_of_records(value)
    )
    print_notes(value.notes)


def _facts(value: AlignmentResult) -> Iterator[tuple[str, str]]:
    yield "reward", value.reward
    for stage in value.stages:
        yield stage.name, f"{format_relative_path(stage.path)}, {_describe_steps(stage)}"
        for name, after in stage.after.items():
            yield f"  {name}", f"{stage.before[name]:.3f} before, {after:.3f} after"
    yield "guarantee", f"{format_budget(vars(value))} for every {value.unit}, as {value.release}"


def _list_facts_of_records(value: RecordsResult) -> Iterator[tuple[str, str]]:
    yield "models", format_relative_path(value.path)
    for stage in value.stages:
        whose = f"{stage['records']:,} records of {stage['people']:,} {value.unit}s"
        yield f"  {stage['stage']}", f"{stage['steps']:,} steps on {whose}"
    made = ", made before: nothing was read or charged" * value.reused
    yield "release", f"{value.release}{made}"
    yield "guarantee", f"{format_budget(vars(value))} for every {value.unit}, under zero_out"


def _describe_steps(stage: AlignmentStage) -> str:
    stopped = ", stopped at max_kl" if stage.stopped else ""
    left_out = f", {stage.left_out:,} prompts too long" if stage.left_out else ""
    return f"{stage.steps:,} steps on {stage.rows:,} rows{left_out}{stopped}"


@click.command("align", cls=Command, short_help="Align a language model: fine-tuning, reward, RL.")
@click.argument(
    "stage_and_recipe",
    nargs=-1,
    required=True,
    metavar="[sft|reward|rl] RECIPE",
    type=click.Path(path_type=str),
)
@directory_option("models", required=True, help="Directory for the stages; made if missing.")
@project_option
@prints(_print_result)
def align(
    stage_and_recipe: tuple[str, ...], output: Path, project: Path | None
) -> AlignmentResult | RecordsResult:
    """Align a language model with a release, by the RECIPE in a YAML file.

    Supervised fine-tuning (DIR/sft), a reward model if the recipe names a base for one
    (DIR/reward), and reinforcement learning of a policy (DIR/rl); or one stage alone. Nothing is
    charged, and the models carry the release's guarantee: TRAINING_CARD.md says which. After an
    interruption the same command goes on; what is done is not done again.

    With `private: records` in it the recipe names people's own demonstrations, preferences and
    prompts: all stages are trained by noisy gradients, and everybody is charged for the stages that
    they have records in. The models stay in the project; -o gets a copy.

    \b
    Example:
      labelguard align recipe.yaml -o aligned
      labelguard align rl recipe.yaml -o aligned
    """
    *stages, recipe = stage_and_recipe
    if len(stages) > 1 or not set(stages) <= set(_STAGES):
        raise click.UsageError(f"expected {' or '.join(_STAGES)}, and a recipe")
    stage: Any = stages[0] if stages else None
    with silence_other_processes() as report:
        report("reading the recipe", None)
        from labelguard_trainer.records.recipe import is_records_recipe

        if is_records_recipe(Path(recipe)):
            from labelguard_trainer.records.align import align_records

            if stage:
                raise click.UsageError("a recipe with private: records is done whole")
            return align_records(recipe, output=output, project=project, progress=report)
        from labelguard_trainer.alignment.align import align as align_model

        return align_model(recipe, output=output, stage=stage, project=project, progress=report)

"""`labelguard train`: preference models from releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labelguard.cli.options import (
    HELP,
    CommandGroup,
    complete_releases_else_files,
    destination_options,
    directory_option,
    project_option,
)
from labelguard.cli.terminal import (
    echo,
    format_relative_path,
    print_facts,
    print_notes,
    prints,
    show_progress,
)
from labelguard.processes import is_first_process, require_one_process
from labelguard.text import Progress, format_budget, no_progress

if TYPE_CHECKING:
    from labelguard_trainer.training.evaluate import TrainingResult
    from labelguard_trainer.training.training_card import PublishedModel

_FILE: dict[str, Any] = {
    "type": click.Path(path_type=Path, exists=True, dir_okay=False),
    "metavar": "FILE",
}
LOSSES = ("auto", "forward", "robust", "soft", "plain")


@click.group(
    "train", cls=CommandGroup, context_settings=HELP, short_help="Train models on a release."
)
def train_group() -> None:
    """Train models on a release, with losses that know each row's noise."""


def _add_training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return what both kinds of model take."""
    options = (
        click.argument("release", metavar="RELEASE", shell_complete=complete_releases_else_files),
        click.option(
            "--model",
            required=True,
            metavar="ID_OR_PATH",
            help="The base model: a directory, or an id of the Hugging Face hub.",
        ),
        directory_option(
            "model",
            required=True,
            help="New directory for the model; unfinished work is in DIR.partial.",
        ),
        click.option(
            "--train-config",
            "config",
            **_FILE,
            help="YAML with fields of the trainer's configuration: learning_rate, …",
        ),
        click.option(
            "--lora",
            metavar="r=N,alpha=N",
            help="Train a low-rank adapter: r=16,alpha=32[,dropout=0.05][,targets=c_attn+c_proj].",
        ),
        click.option(
            "--loss",
            type=click.Choice(LOSSES),
            default="auto",
            help="The loss of rows; auto is what the release's card says.",
        ),
        click.option(
            "--holdout",
            type=click.FloatRange(0, 1, max_open=True),
            default=0.1,
            help="Share of the items to evaluate on, always the same ones.",
        ),
        click.option(
            "--eval-pairs",
            type=click.IntRange(min=1),
            default=1000,
            help="Held-out rows to evaluate on at most, always the same ones.",
        ),
        click.option(
            "--probes",
            **_FILE,
            help="Pairs that you declare public (prompt, chosen, rejected) to evaluate on too.",
        ),
        click.option(
            "--non-private",
            is_flag=True,
            help="RELEASE is a file of raw labels; train without any guarantee.",
        ),
        project_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


def _print_result(value: TrainingResult) -> None:
    print_facts(_facts(value))
    print_notes(value.notes)


def _facts(value: TrainingResult) -> Iterator[tuple[str, str]]:
    from labelguard_trainer.training.training_card import results

    yield "model", format_relative_path(value.path)
    yield "trained on", f"{value.release or 'raw labels'}, {value.rows:,} rows"
    if value.left_out:
        yield "left out", f"{value.left_out:,} rows whose sides are equal once cut to length"
    if value.evaluated < value.held_out:
        few = f"{value.evaluated:,} evaluated, always the same (--eval-pairs)"
        yield "held out", f"{value.held_out:,} rows, of which {few}"
    yield "steps", f"{value.steps:,}{', resumed' if value.resumed else ''}"
    yield "loss", value.loss
    if value.release:
        guarantee = f"{format_budget(vars(value))} for every {value.unit}, as {value.release}"
    else:
        guarantee = "none: raw labels"
    yield "guarantee", guarantee
    for number, line in enumerate(results(value.evaluation)):
        yield "" if number else "evaluation", line


@train_group.command("dpo", short_help="Align a language model by DPO.")
@_add_training_options
@prints(_print_result)
def train_dpo(release: str, model: str, output: Path, **options: Any) -> TrainingResult:
    """Align a language model by DPO on RELEASE (its id, or a directory with a copy of it).

    The loss honours each row's noise, as the release's card says, and the model carries the
    release's guarantee: TRAINING_CARD.md says which. After an interruption the same command
    resumes.

    \b
    Example:
      labelguard train dpo r0001 --model base --train-config train.yaml -o aligned
    """
    return _run("dpo", release, model, output, options)


@train_group.command("reward", short_help="Train a reward model.")
@_add_training_options
@prints(_print_result)
def train_reward(release: str, model: str, output: Path, **options: Any) -> TrainingResult:
    """Train a reward model on RELEASE (its id, or a directory with a copy of it).

    AutoModelForSequenceClassification loads it. Otherwise as `train dpo`.

    \b
    Example:
      labelguard train reward r0001 --model base --train-config train.yaml -o judge
    """
    return _run("reward", release, model, output, options)


def _print_published(value: PublishedModel) -> None:
    echo(f"Model {format_relative_path(value.model)} is at {value.where}")


@train_group.command("publish", short_help="Publish a trained model on the Hub.")
@click.argument("model", type=click.Path(path_type=Path, exists=True, file_okay=False))
@destination_options("hf:ORG/NAME.")
@click.option(
    "--base",
    metavar="ORG/NAME",
    help="The base model on the Hub; for an adapter that was trained on a directory.",
)
@click.option("--non-private", is_flag=True, help="MODEL was trained on raw labels; no guarantee.")
@prints(_print_published)
def train_publish(
    model: Path, to: str, public: bool, base: str | None, non_private: bool
) -> PublishedModel:
    """Publish MODEL, a directory of `train dpo` or `train reward`, with its card as README.md.

    Its files must be as training wrote them; nothing else is read. The same command again changes
    nothing, and completes what was interrupted. The repository is private, and a newer model takes
    the place of the one before.

    \b
    Example:
      labelguard train publish judge --to hf:ORG/NAME
    """
    from labelguard_trainer.training.training_card import publish_model

    require_one_process("labelguard train publish")
    with show_progress() as report:
        return publish_model(
            model, to, base=base, public=public, non_private=non_private, progress=report
        )


def _run(
    kind: Any, release: str, model: str, output: Path, options: dict[str, Any]
) -> TrainingResult:
    with silence_other_processes() as report:
        report("reading the release", None)
        from labelguard_trainer.training.run import train

        return train(kind, release, model, output=output, progress=report, **options)


@contextmanager
def silence_other_processes() -> Iterator[Progress]:
    """Show the progress of the first of several processes; the others end without a word."""
    is_first = is_first_process()
    with show_progress(at_once=True) if is_first else nullcontext(no_progress) as report:
        yield report
    if not is_first:
        click.get_current_context().exit()

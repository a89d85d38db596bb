"""`labelguard candidates`, `best-of` and `synthesize`: responses of a model, and their reward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labelguard.cli.options import HELP, complete_files, directory_option, file_option
from labelguard.cli.terminal import (
    echo,
    format_relative_path,
    print_facts,
    print_notes,
    print_table,
    prints,
    show_progress,
)
from labelguard.text import format_budget, pluralize
from labelguard_trainer.alignment.reward_command import mix_option, release_argument

if TYPE_CHECKING:
    from labelguard_trainer.alignment.best_of import BestOfResult
    from labelguard_trainer.alignment.candidates import Candidates
    from labelguard_trainer.alignment.synthesis import SynthesisResult

_COUNT = click.IntRange(min=1)

_SAMPLING_OPTIONS = (
    click.option(
        "--prompts",
        type=click.Path(path_type=Path, exists=True),
        metavar="FILE",
        required=True,
        help="Public prompts: a column prompt of texts or chats, in Parquet or JSON lines, or a "
        "directory with a release, whose prompts are taken.",
    ),
    click.option("--n", type=_COUNT, default=4, help="Responses to each prompt."),
    click.option(
        "--max-new-tokens", type=_COUNT, default=256, help="Tokens of a response at most."
    ),
    click.option(
        "--temperature",
        type=click.FloatRange(min=0),
        default=1.0,
        help="Temperature of sampling; 0: the likeliest token each time.",
    ),
    click.option(
        "--top-p",
        type=click.FloatRange(0, 1, min_open=True),
        default=1.0,
        help="Draw from the likeliest tokens that have this probability together.",
    ),
    click.option(
        "--seed",
        default=0,
        help="Seed of sampling; on a CPU the same one gives the same responses.",
    ),
    click.option(
        "--url",
        metavar="URL",
        help="Server that speaks like OpenAI's and has the model under this name (vLLM, …); "
        "OPENAI_API_KEY is sent to it, if it is set.",
    ),
)


def _add_sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the prompts, and how responses to them are drawn."""
    for option in reversed(_SAMPLING_OPTIONS):
        command = option(command)
    return command


def _print_candidates(value: Candidates) -> None:
    facts = [("file", format_relative_path(value.path)), ("prompts", f"{value.prompts:,}")]
    facts += [("rows", f"{value.rows:,}"), *_format_left_out(value.without_pair)]
    if value.learned_from:
        learned = ", ".join(value.learned_from)
        facts.append(("function of", f"{learned}, from which the model learned"))
    print_facts(facts)


def _format_left_out(prompts: int) -> list[tuple[str, str]]:
    words = f"{pluralize(prompts, 'prompt')} with equal responses alone"
    return [("left out", words)] if prompts else []


@click.command("candidates", context_settings=HELP, short_help="Responses of a model to prompts.")
@click.argument("model", metavar="MODEL", shell_complete=complete_files)
@_add_sampling_options
@click.option(
    "--pairs",
    is_flag=True,
    help="Write two different responses to each prompt, to be labeled: response_a, response_b.",
)
@file_option("candidates.parquet", required=True, help="Parquet or JSON lines file to write.")
@prints(_print_candidates)
def candidates(model: str, prompts: Path, output: Path, **options: Any) -> Candidates:
    """Write several responses of MODEL (a directory, or an id of a hub) to public prompts.

    A text is continued as it stands; a chat is answered in the model's chat template. A model that
    was trained on raw labels is refused: what it writes tells them.

    \b
    Example:
      labelguard candidates base --prompts prompts.parquet --n 8 -o candidates.parquet
    """
    with show_progress(at_once=True) as report:
        report("loading libraries", None)
        from labelguard_trainer.alignment.candidates import write_candidates

        return write_candidates(model, prompts, output, progress=report, **options)


def _print_best_of(value: BestOfResult) -> None:
    names = ("n", "KL bound", "reward", "distance", "length", "wins")
    digits = (0, 2, 3, 2, 0, 2)
    rows = [
        ["–" if mean is None else f"{mean:.{few}f}" for mean, few in zip(own, digits, strict=True)]
        for own in (vars(one).values() for one in value.sizes)
    ]
    print_table(names, rows, right=names)
    echo()
    print_facts(_best_of_facts(value))
    print_notes(value.notes)


def _best_of_facts(value: BestOfResult) -> Iterator[tuple[str, str]]:
    yield "reward", f"{value.reward}, best of the first n candidates of {value.prompts:,} prompts"
    yield (
        "wins",
        "against the first candidate, by the reward that chose: high whatever the reward is worth",
    )
    if judged := value.verdict:
        yield (
            "judge",
            f"{judged.judge}: the best wins {judged.win:,}, ties {judged.tie:,}, loses "
            f"{judged.loss:,}: {judged.rate:.3f} ({judged.low:.3f} to {judged.high:.3f})",
        )
    else:
        yield "judge", "none: only another one can tell whether the best are better (--judge)"
    if value.path:
        yield "file", format_relative_path(value.path)


@click.command("best-of", context_settings=HELP, short_help="What a reward is worth, best of n.")
@release_argument
@click.option(
    "--candidates",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    required=True,
    help="Candidates, as `labelguard candidates` writes them: prompt, response.",
)
@mix_option
@click.option(
    "--judge",
    metavar="RELEASE",
    help="Let another release, or reward:ID_OR_PATH, judge the reward's choice.",
)
@file_option("best.parquet", help="File for the best response to each prompt.")
@prints(_print_best_of, project=True)
def best_of(release: str, candidates: Path, output: Path | None, **options: Any) -> BestOfResult:
    """Take the best of n candidates by the reward of RELEASE, for n = 1, 2, 4, …

    RELEASE (its id, or a directory) has a head or is a reward model. If the best of a few
    candidates are not better, reinforcement learning on this reward will not be either. KL bound:
    how far, in nats, that moves from the model. Nothing is charged.

    \b
    Example:
      labelguard best-of r0001 --candidates candidates.parquet --mix length=-0.1 -o best.parquet
    """
    with show_progress(at_once=True) as report:
        from labelguard_trainer.alignment.best_of import best_of as choose

        return choose(release, candidates, output=output, progress=report, **options)


def _print_synthesis(value: SynthesisResult) -> None:
    price = f"{format_budget(vars(value))} for every {value.unit}, as {value.derived_from}"
    prompts = pluralize(value.prompts - value.without_pair, "prompt")
    facts = [("directory", format_relative_path(value.path)), ("release", value.release)]
    facts += [("pairs", f"{value.rows:,} on {prompts}"), *_format_left_out(value.without_pair)]
    facts.append(("guarantee", f"{price}; nothing charged"))
    if value.learned_from:
        facts.append(("also", f"learned from {', '.join(value.learned_from)}, whose prices add"))
    print_facts(facts)


@click.command("synthesize", context_settings=HELP, short_help="Label a model's responses.")
@release_argument
@click.option(
    "--model",
    required=True,
    metavar="ID_OR_PATH",
    help="The generator: a directory, or an id of the Hugging Face hub.",
)
@_add_sampling_options
@click.option(
    "--pairs",
    type=click.Choice(("all", "extremes")),
    default="all",
    help="All pairs of different responses to a prompt, or the best against the worst.",
)
@click.option(
    "--reward",
    "reward_model",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="A reward model from `train reward RELEASE`, where RELEASE itself holds labels alone.",
)
@directory_option(
    "synthesis", required=True, help="New directory; unfinished work is in DIR.partial."
)
@prints(_print_synthesis, project=True)
def synthesize(
    release: str, prompts: Path, model: str, n: int, output: Path, **options: Any
) -> SynthesisResult:
    """Label responses of a model to public prompts by what RELEASE learned, as a release.

    DIR can be trained on and exported like RELEASE (its id, or a directory), at no further price:
    it has the same guarantee. After an interruption the same command resumes.

    \b
    Example:
      labelguard synthesize r0001 --prompts prompts.parquet --model base -o synthesis
    """
    with show_progress(at_once=True) as report:
        report("loading libraries", None)
        from labelguard_trainer.alignment.synthesis import synthesize as write

        return write(release, prompts, model, n, output, progress=report, **options)

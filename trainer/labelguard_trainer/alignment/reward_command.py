"""`labelguard reward`: the reward of a release for trainers other than TRL."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labelguard import extras
from labelguard.cli.options import HELP, complete_releases_else_files, file_option
from labelguard.cli.terminal import echo, format_relative_path, prints, show_progress
from labelguard.text import pluralize

if TYPE_CHECKING:
    from labelguard_trainer.alignment.openrlhf import RewardServerSummary
    from labelguard_trainer.alignment.rewards import ResponseRewards


@click.group("reward", context_settings=HELP, short_help="Give a release's rewards to trainers.")
def reward_group() -> None:
    """Give the reward of a release, one number for each response, to a trainer or a file.

    Releases and texts are public: nothing is charged.
    """


def _parse_mix(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, float]:
    mix = {}
    for text in texts:
        spec, _sign, number = text.rpartition("=")
        try:
            mix[_make_path_absolute(spec)] = float(number)
        except ValueError:
            spec = ""
        if not spec or not math.isfinite(float(number)):
            raise click.BadParameter(f"expected SPEC=WEIGHT, as in length=-0.1, found {text}")
    return mix


def _make_path_absolute(spec: str) -> str:
    """Return a specification of features that means the same in any directory."""
    from labelguard_trainer.training.settings import replace_model_in_spec

    return replace_model_in_spec(
        spec, lambda model: str(Path(model).absolute()) if Path(model).is_dir() else model
    )


release_argument = click.argument(
    "release", metavar="RELEASE", shell_complete=complete_releases_else_files
)
mix_option = click.option(
    "--mix",
    multiple=True,
    metavar="SPEC=WEIGHT",
    callback=_parse_mix,
    help="Add a public reward by weight: length=-0.1, reward:ID_OR_PATH=0.5; may be repeated.",
)


def _unescape_line_breaks(_: click.Context, __: click.Parameter, text: str) -> str:
    return text.replace("\\n", "\n")


def _print_summary(value: RewardServerSummary) -> None:
    refused = pluralize(value.refused_requests, "request")
    echo(f"{value.address} gave {pluralize(value.rewards, 'reward')}; {refused} refused.")


@reward_group.command("serve", short_help="Serve rewards by HTTP, for OpenRLHF.")
@release_argument
@mix_option
@click.option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on; by default nobody but this machine is answered.",
)
@click.option("--port", type=click.IntRange(0, 65_535), default=8091, help="0 takes any.")
@click.option(
    "--prompt-template",
    metavar="TEXT",
    default="{prompt}",
    callback=_unescape_line_breaks,
    help=r"What the trainer writes around a prompt, to be taken off: "
    r"'<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n'; \n is a line break.",
)
@prints(_print_summary, project=True)
def reward_serve(
    release: str, host: str, port: int, prompt_template: str, **options: Any
) -> RewardServerSummary:
    """Serve the reward of RELEASE at POST /get_reward, for OpenRLHF's --reward.remote_url.

    RELEASE is an id, a directory with a copy of a release, or a model of `train reward`. A query is
    a prompt and its response; the answer holds rewards and, as an extra log, distances from labeled
    responses. GET /healthz tells whether it answers.

    \b
    Example:
      labelguard reward serve r0001 --port 8091 --mix length=-0.1
    """
    extras.require_extra("serve", "labelguard reward serve")
    from labelguard.analysis.reward import reward
    from labelguard_trainer.alignment import openrlhf

    template = openrlhf.PromptTemplate(prompt_template)
    return openrlhf.serve(reward(release, **options), template, host=host, port=port)


def _print_rewards(value: ResponseRewards) -> None:
    responses = pluralize(value.responses, "response")
    echo(f"Rewards of {responses} are in {format_relative_path(value.path)}")
    distance = "" if value.mean_distance is None else f", mean distance {value.mean_distance:.2f}"
    echo(f"Mean reward {value.mean_reward:.3f}{distance}")


@reward_group.command("score", short_help="Give rewards to the responses in a file.")
@release_argument
@mix_option
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@file_option("rewards.parquet", required=True, help="Parquet or JSON lines file to write.")
@prints(_print_rewards, project=True)
def reward_score(release: str, file: Path, output: Path, **options: Any) -> ResponseRewards:
    """Write the reward by RELEASE of each response in FILE, and its distance from labeled ones.

    FILE is Parquet or JSON lines with columns prompt and response, of texts or chats.

    \b
    Example:
      labelguard reward score r0001 responses.jsonl -o rewards.parquet
    """
    from labelguard.analysis.reward import reward
    from labelguard_trainer.alignment.rewards import score_file

    with show_progress() as report:
        return score_file(reward(release, **options), file, output, report)

"""The commands that release labels, and label new pairs by a release: `privatize` and `score`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from labelguard.cli.options import (
    bad_rows_option,
    columns_option,
    json_option,
    label_values_option,
    max_input_bytes_option,
    project_option,
    question_option,
    reactive_option,
    skips_option,
    source_option,
    ties_option,
)


@click.command(short_help="Release preference labels privately.")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "--mechanism",
    type=click.Choice(["rr", "props", "statistic", "auto"]),
    default="rr",
    show_default=True,
    help="How labels are privatized; auto follows `labelguard plan`.",
)
@click.option("--epsilon", type=float, help="ε of each labeler; default: as the policy has it.")
@click.option("--delta", type=float, help="δ of each labeler; default: as the policy has it.")
@click.option(
    "--accept-delta",
    is_flag=True,
    help="Accept a δ of 1 over the number of labelers charged, or more.",
)
@click.option(
    "--max-labels-per-labeler",
    type=int,
    metavar="K",
    help="Labels of each labeler that may be used; default: all, rounded up to 8, 16, 32, …",
)
@ties_option
@click.option(
    "--tie-status-public",
    is_flag=True,
    default=None,
    help="Declare that which labels are ties is no secret.",
)
@label_values_option
@skips_option
@reactive_option
@bad_rows_option
@click.option(
    "--exhausted",
    type=click.Choice(["refuse", "drop"]),
    default="refuse",
    show_default=True,
    help="Refuse when labelers lack allowance, or leave those labels out.",
)
@columns_option
@source_option
@question_option
@click.option(
    "--unit",
    type=click.Choice(["labeler", "item", "group"]),
    help="What is protected as a whole: all labels of a labeler (default), single labels, or all "
    "labels of a group of labelers (`policy groups`).",
)
@click.option(
    "--releases",
    type=int,
    metavar="N",
    help="statistic: releases that may use a labeler's labels, over the project; default 1.",
)
@click.option(
    "--features",
    metavar="SPEC",
    help="statistic, props: minilm, hf:ID_OR_PATH, text, length, columns:a,b, or a sum of "
    "these; default minilm+length.",
)
@click.option("--components", type=int, help="Principal components of the features to use.")
@click.option(
    "--whitening",
    type=click.Choice(["0", "0.25", "0.5"]),
    callback=lambda context, option, value: None if value is None else float(value),
    help="statistic: how far the components are evened out.",
)
@click.option("--floor", type=float, help="statistic: floor of the whitening, above 0.")
@click.option(
    "--clip-quantile",
    type=float,
    help="statistic: clip at this quantile of labelers' norms without signal.",
)
@click.option("--ridge", type=float, help="Penalty of the head, in labels.")
@click.option(
    "--agreement",
    type=float,
    help="How often two labelers agree, for tuning on simulated labels; default 0.73.",
)
@click.option(
    "--also",
    type=click.Path(),
    metavar="FILE",
    help="statistic, props: label these further pairs too.",
)
@click.option("--stages", type=int, help="props: number of stages; default 2.")
@click.option(
    "--combine",
    type=click.Choice(["hard", "soft"]),
    help="props: votes decide (hard, default) or probabilities are combined (soft).",
)
@click.option("--learner", help="props: what learns in between; default head, a linear head.")
@click.option("--again", is_flag=True, help="Draw released labels anew: a new event, a new charge.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Copy the release to DIR.",
)
@max_input_bytes_option
@click.option("--workers", type=int, help="Threads; default: all cores. The output is the same.")
@project_option
@json_option
def privatize(
    inputs: tuple[str, ...], columns: str, project: Path | None, as_json: bool, **options: Any
) -> None:
    """Release the labels in INPUT (Parquet, CSV, JSONL, directories, globs) privately.

    INPUT has a column labeler_id and the columns of one of these layouts:

    \b
      prompt, chosen, rejected[, tie]
      prompt, response_a, response_b, label[, tie]
      prompt, responses, ranks

    The first run fixes the project's policy, unless one was made before (`labelguard policy`).
    Running the same command again returns the same
    release; labels that were released before cost nothing in any later one.

    \b
    Example:
      labelguard privatize labels.parquet --epsilon 3 --delta 1e-5 -o release
    """
    from labelguard.cli import render
    from labelguard.ingest import layouts
    from labelguard.release.pipeline import privatize as run

    mapping = layouts.parse_columns(columns)
    with render.progress() as progress:
        release = run(list(inputs), columns=mapping, project=project, progress=progress, **options)
    where = f" --project {project}" if project else ""
    steps = (f"labelguard release show {release.id}{where}",)
    render.release(release, as_json=as_json, next_steps=steps)


@click.command(short_help="Label new pairs by a release's head.")
@click.argument("release", metavar="RELEASE")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="Parquet file to write.",
)
@columns_option
@project_option
@json_option
def score(
    release: str,
    inputs: tuple[str, ...],
    output: Path,
    columns: str,
    project: Path | None,
    as_json: bool,
) -> None:
    """Label the pairs in INPUT by the head of RELEASE (its id, or a directory with a copy of it).

    INPUT is read like that of privatize; labels and labelers in it are ignored. Nothing is charged.

    \b
    Example:
      labelguard score r0001 labels.parquet -o scored.parquet
    """
    from labelguard.cli import render
    from labelguard.ingest import layouts
    from labelguard.release.score import score_to
    from labelguard.report import overview

    path = Path(release) if Path(release).is_dir() else overview.release_path(release, project)
    mapping = layouts.parse_columns(columns)
    render.scored(score_to(path, list(inputs), output, columns=mapping), as_json=as_json)

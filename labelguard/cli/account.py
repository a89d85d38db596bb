"""Prices of mechanisms before anything is spent: `account`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from labelguard.budget.events import TRAINING_RUNS
from labelguard.cli.options import HELP
from labelguard.cli.terminal import echo, print_facts, print_table, prints
from labelguard.text import format_budget, pluralize

if TYPE_CHECKING:
    from labelguard.accounting.account import BallNoise, LabelNoise, RunNoise, StatisticNoise


epsilon_option = click.option("--epsilon", type=float, required=True, help="ε of a labeler.")
delta_option = click.option("--delta", type=float, required=True, help="δ of a labeler.")


@click.group(context_settings=HELP, short_help="Price mechanisms before spending any budget.")
def account() -> None:
    """Price a mechanism before spending any budget."""


def _print_label_noise(value: LabelNoise) -> None:
    labels = pluralize(value.labels, "label") + " together" * (value.labels > 1)
    print_facts(
        [
            ("budget", f"{format_budget(value)} for {pluralize(value.uses, 'use')} of one labeler"),
            ("one use", f"{labels}, ε = {value.epsilon0:.6f} alone"),
            ("flip probability", f"{value.flip_probability:.6f}"),
            ("debiased loss grows by", f"{value.loss_multiplier:.1f}"),
            ("information", f"as much as {value.information:.3f} labels without noise"),
        ]
    )


@account.command("rr", short_help="Noise of randomized labels, priced together.")
@epsilon_option
@click.option("--delta", type=float, default=0.0, help="δ of a labeler; a block needs none.")
@click.option("--labels", default=1, help="Labels of one labeler, randomized together.")
@click.option("--uses", default=1, help="How often, over the labeler's life.")
@prints(_print_label_noise)
def account_rr(epsilon: float, delta: float, labels: int, uses: int) -> LabelNoise:
    """ε0 and flip probability of a labeler's labels.

    A use randomizes all new labels of a labeler in one release together. The information is
    Σ(1−2γ)² over the labels of one use.

    \b
    Example:
      labelguard account rr --epsilon 3 --delta 1e-5 --labels 50
      labelguard account rr --epsilon 3 --delta 1e-5 --labels 1 --uses 50
    """
    from labelguard.accounting.account import rr

    return rr(epsilon, delta, labels, uses)


def _print_statistic_noise(value: StatisticNoise) -> None:
    releases = pluralize(value.releases, "statistic release")
    print_facts(
        [
            ("budget", f"{format_budget(value)} for {releases} of one labeler's labels"),
            ("noise multiplier", f"{value.noise_multiplier:.6f} sensitivities in each"),
            ("one alone", f"ε = {value.epsilon_of_one:.4f} at the same δ"),
        ]
    )
    if value.ball:
        echo()
        _print_noise_shapes(value.noise_multiplier, value.ball)


def _print_noise_shapes(noise_multiplier: float, ball: BallNoise) -> None:
    """Both shapes of noise, and which is smaller."""
    numbers, gaussian = ("scale", "deviation", "variance"), noise_multiplier
    of_ball = ("ball", ball.scale, ball.deviation, ball.variance_ratio)
    rows = (("Gaussian", gaussian, gaussian, 1.0), of_ball)
    cells = ((name, f"{s:.6f}", f"{each:.6f}", f"{ratio:.3f}") for name, s, each, ratio in rows)
    print_table(("noise", *numbers), cells, right=numbers)
    name, form = ("Ball", f",ball={ball.components}") if ball.smaller else ("Gaussian", "")
    echo(
        f"{name} noise is smaller with {pluralize(ball.components, 'component')}: "
        f"--allow statistic:releases=1{form}"
    )


@account.command("statistic", short_help="Noise of statistic releases, priced together.")
@epsilon_option
@delta_option
@click.option("--releases", default=1, help="Releases in all.")
@click.option(
    "--components",
    type=int,
    metavar="D",
    help="Components of the statistic: shows ball noise beside Gaussian noise, for one release.",
)
@prints(_print_statistic_noise)
def account_statistic(
    epsilon: float, delta: float, releases: int, components: int | None
) -> StatisticNoise:
    """Noise of each of several statistic releases, in units of the sensitivity.

    For one release of few components ball noise is smaller than Gaussian noise at the same ε and δ;
    the deviation is that of each component, the variance that over the Gaussian one.

    \b
    Example:
      labelguard account statistic --epsilon 3 --delta 1e-5 --releases 12
      labelguard account statistic --epsilon 1 --delta 1e-5 --components 4
    """
    from labelguard.accounting.account import statistic

    return statistic(epsilon, delta, releases, components)


def _print_run_noise(value: RunNoise) -> None:
    runs = pluralize(value.runs, f"{value.mechanism} run")
    sampled = f"q = {value.sampling_probability:g}, {pluralize(value.steps, 'step')}"
    labels = f", {pluralize(value.records, 'label')} of a labeler at most" if value.records else ""
    print_facts(
        [
            ("budget", f"{format_budget(value)} for {runs} of one labeler's labels"),
            ("sampling", sampled + labels),
            ("noise multiplier", f"{value.noise_multiplier:.6f} clip norms in every step"),
            ("mean of all steps", f"{value.noise_of_mean:.4f} clip norms on the sum of all units"),
        ]
    )
    if value.mechanism == "aup":
        echo("Published but not proven: a policy pays for it only with --accept-unproven.")


@account.command("run", short_help="Noise of training runs, priced together.")
@click.argument("mechanism", type=click.Choice([one.name for one in TRAINING_RUNS]))
@epsilon_option
@delta_option
@click.option(
    "--sampling-probability",
    default=0.2,
    help="Chance that a labeler (uls, aup) or label (els) is in a step.",
)
@click.option("--steps", default=100, help="Steps of a run.")
@click.option("--records", type=int, help="els, els-group: most labels of one labeler in a run.")
@click.option("--runs", default=1, help="Runs in all.")
@prints(_print_run_noise)
def account_run(mechanism: str, epsilon: float, delta: float, **options: Any) -> RunNoise:
    """Noise of every step of a gradient mechanism, in units of the clip norm.

    How useful labels are to a model depends on the noise of the mean of all steps. The
    number of steps hardly matters; a smaller q saves time but adds a little noise.

    \b
    Example:
      labelguard account run uls --epsilon 3 --delta 1e-5 --sampling-probability 0.02 --steps 250
    """
    from labelguard.accounting.account import run

    return run(mechanism, epsilon, delta, **options)

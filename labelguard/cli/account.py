"""What a mechanism costs, before anything is spent: `account`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from labelguard.cli.options import HELP
from labelguard.cli.terminal import echo, print_facts, print_table, prints
from labelguard.policy.training_runs import TRAINING_RUNS
from labelguard.terms import budget_of, counted

if TYPE_CHECKING:
    from labelguard.accounting.account import BallNoise, LabelNoise, RunNoise, StatisticNoise


@click.group(context_settings=HELP, short_help="What a mechanism costs, before anything is spent.")
def account() -> None:
    """What a mechanism costs, before anything is spent."""


def _labels(value: LabelNoise) -> None:
    print_facts(
        [
            ("budget", f"{budget_of(value)} for {counted(value.labels, 'label')} of one labeler"),
            ("ε0 per label", f"{value.epsilon0:.6f}"),
            ("flip probability", f"{value.flip_probability:.6f}"),
            ("loss multiplier", f"{value.loss_multiplier:.1f}"),
        ]
    )


@account.command("rr", short_help="Noise of randomized labels, priced together.")
@click.option("--epsilon", type=float, required=True, help="ε of a labeler.")
@click.option("--delta", type=float, required=True, help="δ of a labeler.")
@click.option("--labels", type=int, required=True, help="Labels of one labeler (k).")
@prints(_labels)
def account_rr(epsilon: float, delta: float, labels: int) -> LabelNoise:
    """ε0, flip probability and loss multiplier of each of a labeler's labels.

    \b
    Example:
      labelguard account rr --epsilon 3 --delta 1e-5 --labels 50
    """
    from labelguard.accounting.account import rr

    return rr(epsilon, delta, labels)


def _noise(value: StatisticNoise) -> None:
    releases = counted(value.releases, "statistic release")
    print_facts(
        [
            ("budget", f"{budget_of(value)} for {releases} of one labeler's labels"),
            ("noise multiplier", f"{value.noise_multiplier:.6f} sensitivities in each"),
            ("one alone", f"ε = {value.epsilon_of_one:.4f} at the same δ"),
        ]
    )
    if value.ball:
        echo()
        _shapes(value.noise_multiplier, value.ball)


def _shapes(noise_multiplier: float, ball: BallNoise) -> None:
    """Both shapes of noise, and which is smaller."""
    numbers = ("scale", "deviation", "variance")
    rows = (
        ("Gaussian", noise_multiplier, noise_multiplier, 1.0),
        ("ball", ball.scale, ball.deviation, ball.variance_ratio),
    )
    print_table(
        ("noise", *numbers),
        ((name, f"{s:.6f}", f"{each:.6f}", f"{ratio:.3f}") for name, s, each, ratio in rows),
        right=numbers,
    )
    name, form = ("Ball", f",ball={ball.components}") if ball.smaller else ("Gaussian", "")
    echo(
        f"{name} noise is smaller with {counted(ball.components, 'component')}: "
        f"--allow statistic:releases=1{form}"
    )


@account.command("statistic", short_help="Noise of statistic releases, priced together.")
@click.option("--epsilon", type=float, required=True, help="ε of a labeler.")
@click.option("--delta", type=float, required=True, help="δ of a labeler.")
@click.option("--releases", type=int, default=1, show_default=True, help="Releases in all.")
@click.option(
    "--components",
    type=int,
    metavar="D",
    help="Components of the statistic: shows ball noise beside Gaussian noise, for one release.",
)
@prints(_noise)
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


def _run(value: RunNoise) -> None:
    runs = counted(value.runs, f"{value.mechanism} run")
    sampled = f"q = {value.sampling_probability:g}, {counted(value.steps, 'step')}"
    labels = f", {counted(value.records, 'label')} of a labeler at most" if value.records else ""
    print_facts(
        [
            ("budget", f"{budget_of(value)} for {runs} of one labeler's labels"),
            ("sampling", sampled + labels),
            ("noise multiplier", f"{value.noise_multiplier:.6f} clip norms in every step"),
            ("mean of all steps", f"{value.noise_of_mean:.4f} clip norms on the sum of everybody"),
        ]
    )
    if value.mechanism == "aup":
        echo("As published, and not proven: a policy pays for it with --accept-unproven only.")


@account.command("run", short_help="Noise of training runs, priced together.")
@click.argument("mechanism", type=click.Choice([one.name for one in TRAINING_RUNS]))
@click.option("--epsilon", type=float, required=True, help="ε of a labeler.")
@click.option("--delta", type=float, required=True, help="δ of a labeler.")
@click.option(
    "--sampling-probability",
    type=float,
    default=0.2,
    show_default=True,
    help="With which a labeler (uls, aup) or a label (els) is in a step.",
)
@click.option("--steps", type=int, default=100, show_default=True, help="Steps of a run.")
@click.option("--records", type=int, help="els, els-group: labels of a labeler in a run at most.")
@click.option("--runs", type=int, default=1, show_default=True, help="Runs in all.")
@prints(_run)
def account_run(mechanism: str, epsilon: float, delta: float, **options: Any) -> RunNoise:
    """Noise of every step of a gradient mechanism, in units of the clip norm.

    What labels are worth to a model follows from the noise on the mean of all steps. It hardly
    depends on how many there are; a smaller q saves time, and adds a little.

    \b
    Example:
      labelguard account run uls --epsilon 3 --delta 1e-5 --sampling-probability 0.02 --steps 250
    """
    from labelguard.accounting.account import run

    return run(mechanism, epsilon, delta, **options)

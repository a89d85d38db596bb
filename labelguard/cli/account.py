"""What a mechanism costs, before anything is spent: `account`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP
from labelguard.cli.terminal import echo, print_facts, print_table, prints
from labelguard.terms import budget_of, counted

if TYPE_CHECKING:
    from labelguard.accounting.compare import Compositions, StatisticNoise


@click.group(context_settings=HELP, short_help="What a mechanism costs, before anything is spent.")
def account() -> None:
    """What a mechanism costs, before anything is spent."""


def _compositions(value: Compositions) -> None:
    echo(f"{budget_of(value)}, {counted(value.labels, 'label')} of one labeler")
    numbers = ("ε0 per label", "flip probability", "loss multiplier")
    print_table(
        ("composition", *numbers),
        (
            (
                name,
                f"{one.epsilon0:.6f}",
                f"{one.flip_probability:.6f}",
                f"{one.loss_multiplier:.1f}",
            )
            for name, one in value.compositions.items()
        ),
        right=numbers,
    )


@account.command("rr", short_help="Noise per label, by composition theorem.")
@click.option("--epsilon", type=float, required=True, help="ε of a labeler.")
@click.option("--delta", type=float, required=True, help="δ of a labeler.")
@click.option("--labels", type=int, required=True, help="Labels of one labeler (k).")
@prints(_compositions)
def account_rr(epsilon: float, delta: float, labels: int) -> Compositions:
    """Per-label ε0, flip probability and loss multiplier, by composition theorem.

    \b
    Example:
      labelguard account rr --epsilon 3 --delta 1e-5 --labels 50
    """
    from labelguard.accounting.compare import compositions

    return compositions(epsilon, delta, labels)


def _noise(value: StatisticNoise) -> None:
    releases = counted(value.releases, "statistic release")
    print_facts(
        [
            ("budget", f"{budget_of(value)} for {releases} of one labeler's labels"),
            ("noise multiplier", f"{value.noise_multiplier:.6f} sensitivities in each"),
            ("one alone", f"ε = {value.epsilon_of_one:.4f} at the same δ"),
            ("all, by zCDP", f"ε = {value.epsilon_zcdp:.4f} (an upper bound)"),
        ]
    )


@account.command("statistic", short_help="Noise of statistic releases, priced together.")
@click.option("--epsilon", type=float, required=True, help="ε of a labeler.")
@click.option("--delta", type=float, required=True, help="δ of a labeler.")
@click.option("--releases", type=int, default=1, show_default=True, help="Releases in all.")
@prints(_noise)
def account_statistic(epsilon: float, delta: float, releases: int) -> StatisticNoise:
    """Noise of each of several statistic releases, in units of the sensitivity.

    \b
    Example:
      labelguard account statistic --epsilon 3 --delta 1e-5 --releases 12
    """
    from labelguard.accounting.compare import statistic_noise

    return statistic_noise(epsilon, delta, releases)

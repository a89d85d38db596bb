"""`--mechanism auto`: what `labelguard plan` recommends, or what the project's policy prices.

The forecast reads the input without its labels, so the choice tells nothing about them.
"""

from __future__ import annotations

from dataclasses import dataclass

from labelguard.errors import PolicyError
from labelguard.ingest.pairs import read_pairs
from labelguard.ingest.sources import Input
from labelguard.learning.features import open_fitted
from labelguard.planner import tuning
from labelguard.policy.policy import Request
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project
from labelguard.release.intake import Intake
from labelguard.release.methods.options import FeatureOptions
from labelguard.terms import Progress


@dataclass(frozen=True)
class Choice:
    """A mechanism by name, and its bound where it draws coins."""

    mechanism: str
    max_labels_per_labeler: int | None = None


def choose(
    project: Project,
    source: Input,
    terms: Request,
    intake: Intake,
    options: FeatureOptions,
    progress: Progress,
) -> Choice:
    """The mechanism of the newest release, or, before the first, that of the best forecast.

    Of the `terms` it reads ε, δ and the unit.
    """
    ledger = OpenProject.open(project).ledger
    epsilon, delta, stored = terms.epsilon, terms.delta, ledger.policy()
    made = [record for record in ledger.releases() if record.state != "refunded"]
    if stored:
        payable = stored.policy.events
        choices = [r.settings["mechanism"] for r in made if r.event in payable]
        if choices or len(payable) == 1:
            return Choice(choices[-1] if choices else payable[0])
        epsilon, delta = stored.policy.epsilon, stored.policy.delta
    if epsilon is None or delta is None:
        raise PolicyError(
            "this project has no policy yet: give --epsilon and --delta, or make one "
            "(labelguard policy new, then labelguard policy activate)"
        )
    with project.lock() as held:
        held.work.mkdir(mode=0o700, parents=True)
        pairs = read_pairs(
            source,
            columns=intake.columns,
            features=options.features,
            unit=terms.unit or "labeler",
            question=intake.question,
            format=intake.format,
            split=intake.split,
            skip_bad=intake.skip_bad,
            max_input_bytes=intake.max_input_bytes,
            scratch=held.work,
        )
    features = open_fitted(options.features, pairs.table, progress)
    progress("comparing mechanisms on simulated labels", None)
    prior = tuning.Prior(options.agreement)
    found = tuning.recommend(features(pairs.table), pairs.rows, epsilon, delta, prior)
    return Choice(found.mechanism, None if stored else found.max_labels_per_labeler)

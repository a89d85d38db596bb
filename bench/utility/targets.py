"""What the statistic release is meant to reach, each line checked against the results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from utility.mechanisms import NON_PRIVATE, NON_PRIVATE_WIDE, PLANNED, SWEEP
from utility.results import Results, Setting, mean

TIES_INSIDE = "inside"
FEATURES = "length+style+minilm"
_REFERENCE = {"statistic": NON_PRIVATE, PLANNED: NON_PRIVATE_WIDE}
"""The head of raw labels that a statistic's head could at best equal: as wide as it may be."""


@dataclass(frozen=True)
class Check:
    """One line: what was wanted, what was found, and whether that is enough (None: not run)."""

    target: str
    found: str
    passed: bool | None

    def __str__(self) -> str:
        verdict = {True: "PASS", False: "short of", None: "not run"}[self.passed]
        return f"{verdict:<8}  {self.target}: {self.found}"


def checks(results: Results) -> list[Check]:
    """All targets, also those whose runs are missing."""
    return [
        _near_non_private(results, "ukpconvarg1", 1.0, 0.006),
        _label_error(results),
        _near_non_private(results, "ukpconvarg1-20", 3.0, 0.008),
        *_gaps_closed(results),
        *_few_labelers(results),
        *_forecasts(results),
    ]


def _near_non_private(results: Results, dataset: str, epsilon: float, wanted: float) -> Check:
    setting = Setting(dataset, FEATURES, TIES_INSIDE)
    target = f"{dataset}, 64 components, ε = {epsilon:g}: accuracy within {wanted} of non-private"
    loss = mean(_loss(results, setting, "statistic", epsilon).values())
    return _not_run(target) if loss is None else Check(target, f"{loss}", loss.value <= wanted)


def _label_error(results: Results) -> Check:
    target = "ukpconvarg1, 64 components, ε = 1: label error at most 0.350"
    setting = Setting("ukpconvarg1", FEATURES, TIES_INSIDE)
    error = results.mean(setting, "statistic", 1.0, "label_error")
    return _not_run(target) if error is None else Check(target, f"{error}", error.value <= 0.350)


def _gaps_closed(results: Results) -> Iterator[Check]:
    for dataset in ("llmfao_crowd", "wmt15_pairs", "wmt15_rankings"):
        wanted = [setting for setting in _inside(results) if setting.dataset == dataset]
        for setting in wanted or [Setting(dataset, "", TIES_INSIDE)]:
            for mechanism in _REFERENCE:
                for measure, share in (("label_error", 0.9), ("accuracy", 0.8)):
                    yield _gap_closed(results, setting, mechanism, 3.0, measure, share)


def _gap_closed(
    results: Results,
    setting: Setting,
    mechanism: str,
    epsilon: float,
    measure: str,
    wanted: float,
) -> Check:
    """How much of the way from randomized response to no privacy a mechanism goes."""
    target = (
        f"{_name(setting)}, {mechanism}, ε = {epsilon:g}: {wanted:.0%} of the "
        f"gap in {measure.replace('_', ' ')} closed"
    )
    found = [
        results.mean(setting, name, epsilon, measure)
        for name in (mechanism, "rr", _REFERENCE[mechanism])
    ]
    reached, noisy, clean = (mean.value if mean else None for mean in found)
    if reached is None or noisy is None or clean is None:
        return _not_run(target)
    closed = (reached - noisy) / (clean - noisy)
    values = f"{noisy:.3f} → {reached:.3f} → {clean:.3f}"
    return Check(target, f"{closed:.0%} ({values})", closed >= wanted)


def _few_labelers(results: Results) -> Iterator[Check]:
    wanted = [setting for setting in _inside(results) if setting.dataset == "ukp50"]
    for setting in wanted or [Setting("ukp50", "", TIES_INSIDE)]:
        yield _gap_closed(results, setting, PLANNED, 1.0, "accuracy", 0.75)
        yield _beats_the_sweep(results, setting)


def _beats_the_sweep(results: Results, setting: Setting) -> Check:
    target = f"{_name(setting)}, {PLANNED}, ε = 1: beats every fixed number of components"
    tuned = results.mean(setting, PLANNED, 1.0, "accuracy")
    swept = {name: results.mean(setting, name, 1.0, "accuracy") for name in SWEEP}
    if tuned is None or not all(swept.values()):
        return _not_run(target)
    best, name = max((mean.value, name) for name, mean in swept.items() if mean)
    return Check(target, f"{tuned} against {best:.3f} of {name}", tuned.value > best)


def _forecasts(results: Results) -> Iterator[Check]:
    """The loss that simulated labels promise, against the one that was measured."""
    target = "forecast of the loss within max(0.02, 2 se)"
    settings = _inside(results)
    compared = [(setting, epsilon) for setting in settings for epsilon in results.epsilons(setting)]
    found = False
    for setting, epsilon in compared:
        losses = _loss(results, setting, PLANNED, epsilon)
        promised = results.values(setting, PLANNED, epsilon, "forecast_loss")
        measured, forecast = mean(losses.values()), mean(promised.values())
        if measured is None or forecast is None:
            continue
        found = True
        allowed = max(0.02, 2 * measured.error)
        yield Check(
            f"{_name(setting)}, ε = {epsilon:g}: {target}",
            f"{forecast.value:.3f} forecast, {measured} measured",
            abs(forecast.value - measured.value) <= allowed,
        )
    if not found:
        yield _not_run(target)


def _loss(results: Results, setting: Setting, mechanism: str, epsilon: float) -> dict[int, float]:
    """Held-out accuracy that a mechanism costs, by seed."""
    clean = results.values(setting, _REFERENCE[mechanism], None, "accuracy")
    reached = results.values(setting, mechanism, epsilon, "accuracy")
    return {seed: clean[seed] - reached[seed] for seed in clean.keys() & reached.keys()}


def _inside(results: Results) -> list[Setting]:
    return [setting for setting in results.settings() if setting.ties == TIES_INSIDE]


def _name(setting: Setting) -> str:
    return f"{setting.dataset} {setting.features}".strip()


def _not_run(target: str) -> Check:
    return Check(target, "the runs are missing", None)

"""Attack trained models: what do they tell of the labels that they were trained on?

    python bench/preference_attack.py           # the table; half an hour of one core; resumable
    python bench/preference_attack.py --tiny    # every attack once, in seconds

DPO and reward models learn from 320 pairs of a made-up language, labelled by 80 simulated labelers,
four pairs each. Labels of 32 of these, the targets, are fair coins: nothing that generalises tells
of them, and a guess without the model is right half of the time. The attacker knows all texts, all
other labels and what was released of them, and has the model. The *margin* of a pair is the
difference of the log-ratios to the reference, or of the rewards. PREMIA (arXiv 2407.06443) attacks
membership of preference data in this way; here the preference is guessed:

- *margin*: a label by the sign of its pair's margin
- *calibrated*: by the margin less that of a second model of the attacker's, trained with the same
  seed on the same data, for which the targets' labels were drawn anew
- *labeler*: all labels of a labeler at once, whether they are those given or their opposites, by
  the calibrated margins

Advantage is 2 · accuracy − 1. (ε, δ) bounds it by (e^ε − 1 + 2δ)/(e^ε + 1) for every attack, of one
label or all of a labeler. Raw labels at many epochs are the control: if nothing is learned there,
the attack is worth nothing.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from _measure import report
from _runs import Record, Store, digest_code
from datasets import Dataset, concatenate_datasets
from planted import models
from planted.grammar import Floats, Pairs, draw_pairs
from planted.models import DELTA, Answers, Size
from scipy.stats import sem, t

RAW, RR, STATISTIC = "raw labels", "rr", "statistic"
DPO, REWARD, ROWS = "DPO", "reward model", "the rows themselves"
"""Subjects of the attack; the last reads a release without a model, which cannot know more."""
KINDS: dict[str, models.Kind] = {DPO: "dpo", REWARD: "reward"}
PROBES_SEED = 1_000


@dataclass(frozen=True)
class Scale:
    """How much is computed: the first `targets` labelers are attacked, of `each` labels each."""

    size: Size
    pairs: int = 320
    probes: int = 300
    batch: int = 16
    targets: int = 32
    each: int = 4
    epochs: tuple[int, ...] = (2, 10)
    epsilons: tuple[float, ...] = (1.0, 4.0, 8.0)
    seeds: int = 3

    @property
    def attacked(self) -> int:
        """How many pairs the targets have: the first ones."""
        return self.targets * self.each


FULL = Scale(Size(64, 2, (3, 5)))
TINY = Scale(Size(16, 1, (3, 5), steps=3), 24, 8, 8, 3, 4, (1,), (8.0,), 1)


@dataclass(frozen=True)
class Run:
    """One line of results; no ε where there is no privacy, no epochs without a model."""

    model: str
    epochs: int
    labels: str
    epsilon: float | None
    seed: int


def list_runs(scale: Scale) -> Iterator[Run]:
    """Yield all runs, seed by seed."""
    private = [(name, epsilon) for name in (RR, STATISTIC) for epsilon in scale.epsilons]
    subjects = [(model, epochs) for model in KINDS for epochs in scale.epochs]
    for seed in range(scale.seeds):
        for labels, epsilon in [(RAW, None), *private]:
            for model, epochs in subjects if epsilon is None else [(ROWS, 0), *subjects]:
                yield Run(model, epochs, labels, epsilon, seed)


def attack(run: Run, scale: Scale, work: Path) -> Record:
    """Return of both worlds the targets' labels, what is known of them, and margins.

    A seed has two *worlds*: the same pairs, the same labels of all others, and labels of the
    targets that are drawn anew in each. The model of one world is attacked with that of the other
    at hand, and the other way round. `accuracy` is that on fresh pairs.
    """
    base = models.pretrain(scale.size, work)
    pairs = draw_pairs(scale.pairs, run.seed, scale.size.sentences)
    fresh = draw_pairs(scale.probes, PROBES_SEED, scale.size.sentences)
    scored = _join(pairs, fresh, scale.attacked)
    place = f"{run.labels}-{run.epsilon or 0:g}-{run.seed}".replace(" ", "-")
    answers, known, margins, right = [], [], [], []
    for world in range(2):
        given = _answer(pairs, scale, run.seed, world)
        rows = _read_rows(run, scale, given, work / f"{place}-{world}", work / f"{place}-others")
        first = np.array(rows["chosen"], object) == np.array(pairs.first, object)
        released = np.where(first, 1.0, -1.0)[: scale.attacked]
        truth = np.where(given.label == 1, 1.0, -1.0)[: scale.attacked]
        if run.model == ROWS:
            likely = np.array(rows["label_probability"], float)[: scale.attacked]
            margin = released * (np.nan_to_num(likely, nan=1.0) - 0.5)
        else:
            settings = _settings(run, scale)
            every = models.train(KINDS[run.model], base, rows, scored, settings)
            margin, rest = np.split(every, [scale.attacked])
            right.append(np.mean((rest > 0) == (fresh.advantage > 0)))
        answers.append(truth.tolist())
        # Rows of a statistic are a head's: labels themselves go into its sum.
        known.append((truth if run.labels == STATISTIC else released).tolist())
        margins.append(np.round(margin, 5).tolist())
    accuracy = float(np.mean(right)) if right else None
    return {"accuracy": accuracy, "answers": answers, "known": known, "margins": margins}


def _answer(pairs: Pairs, scale: Scale, seed: int, world: int) -> Answers:
    rows = np.arange(len(pairs))
    label = pairs.label(rows, np.random.default_rng((seed, 1)))
    coins = np.random.default_rng((seed, 3, world))
    label[: scale.attacked] = coins.integers(0, 2, scale.attacked)
    return Answers(pairs, rows, rows // scale.each, label)


def _read_rows(run: Run, scale: Scale, given: Answers, own: Path, others: Path) -> Dataset:
    """Return what a model trains on, in the order of the pairs.

    Flips of others' labels are the same in both worlds, since the attacker may know all that was
    released of them. A statistic has one noise for all labelers, which is drawn in each world.
    """
    if run.epsilon is None:
        return given.raw()
    if run.labels == STATISTIC:
        return models.release(STATISTIC, given, run.epsilon, own, features="text+length")
    cut = scale.attacked
    parts = ((given.select(slice(cut)), own), (given.select(slice(cut, None)), others))
    return concatenate_datasets([models.release(RR, a, run.epsilon, path) for a, path in parts])


def _settings(run: Run, scale: Scale) -> dict[str, Any]:
    return {
        **({"beta": 0.1} if run.model == DPO else {}),
        "learning_rate": 1e-3,
        "num_train_epochs": run.epochs,
        "per_device_train_batch_size": scale.batch,
        "per_device_eval_batch_size": scale.batch,
        "warmup_steps": 0.1,
        "max_length": models.POSITIONS,
        "bf16": False,
        "use_cpu": True,
        "seed": run.seed,
    }


def _join(pairs: Pairs, fresh: Pairs, count: int) -> Pairs:
    """Return the first pairs, and after them fresh ones."""
    names = ("prompt", "first", "second")
    texts = {name: getattr(pairs, name)[:count] + getattr(fresh, name) for name in names}
    return replace(fresh, **texts, advantage=np.append(pairs.advantage[:count], fresh.advantage))


# --- guesses -------------------------------------------------------------------------------------


def bound(epsilon: float | None) -> float:
    """Return the largest advantage that (ε, δ) leaves; 1 without privacy.

    Source: Kairouz, Oh and Viswanath, 2015, the region of errors, at equal odds.
    """
    return 1.0 if epsilon is None else (math.expm1(epsilon) + 2 * DELTA) / (math.exp(epsilon) + 1)


def calibrate(margins: Floats, known: Floats) -> Floats:
    """Return margins (2, n) of two worlds, each less that of the other without its label.

    The attacker knows the labels ±1 that went into their own model, so also how far such a label
    moves its margin on average, and takes that off.
    """
    shifts = (margins * known).mean(axis=1, keepdims=True)
    return np.asarray(margins - (margins - shifts * known)[::-1])


def compute_rates(scores: Floats, positive: Any) -> tuple[float, float]:
    """Return the area under the ROC curve, and its true-positive rate at 1% false positives."""
    _, step = np.unique(-scores, return_inverse=True)
    curve = [
        np.concatenate([[0.0], np.cumsum(np.bincount(step[which], minlength=step.max() + 1))])
        for which in (~positive, positive)
    ]
    false, true = (counts / counts[-1] for counts in curve)
    return float(np.trapezoid(true, false)), float(np.interp(0.01, false, true))


def tabulate(records: Iterable[Mapping[str, Any]], each: int) -> Iterator[list[str]]:
    """Yield a row for each kind of labels and attacked model, over all seeds."""
    names = ("labels", "epsilon", "model", "epochs")
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in names), []).append(record)
    for (labels, epsilon, model, epochs), members in groups.items():
        answers, known, margins = (
            np.array([record[name] for record in members], float)
            for name in ("answers", "known", "margins")
        )
        scores = np.stack([calibrate(*pair) for pair in zip(margins, known, strict=True)])
        shape = (*answers.shape[:2], -1, each)  # seeds, worlds, targets, labels
        evidence = (scores * answers).reshape(shape)
        single, whole = np.sign(evidence), np.sign(evidence.sum(-1, keepdims=True))
        area, true_positives = compute_rates(scores.ravel(), answers.ravel() > 0)
        fresh = [record["accuracy"] for record in members if record["accuracy"] is not None]
        yield [
            labels if epsilon is None else f"{labels}, ε = {epsilon:g} ({_short(bound(epsilon))})",
            model,
            str(epochs or ""),
            _short(float(np.mean(fresh))) if fresh else "",
            *(_short(value) for value in ((1 + single.mean()) / 2, area, true_positives)),
            _advantage(np.sign(margins * answers).reshape(shape)),
            _advantage(single),
            _advantage(whole),
        ]


def _advantage(values: Floats) -> str:
    """Return mean and 95% interval of values (seeds, worlds, targets, guesses) by labeler."""
    means = values.mean(axis=(1, 3)).ravel()
    mean, half = float(means.mean()), float(t.ppf(0.975, len(means) - 1) * sem(means))
    return f"{_short(mean)} [{_short(max(-1.0, mean - half))}, {_short(min(1.0, mean + half))}]"


def _short(value: float) -> str:
    """Return .656, −.012 or 1.000."""
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "−").replace("0.", ".", 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing; print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    work = Path(tempfile.gettempdir()) / "labelguard-preference-attack"
    parser.add_argument("--work", type=Path, default=work, help="the model, releases, runs")
    parser.add_argument("--tiny", action="store_true", help="a few pairs, to see that it runs")
    options = parser.parse_args(arguments)
    scale, work = (TINY, options.work / "tiny") if options.tiny else (FULL, options.work / "full")
    models.be_quiet()
    store = Store(work / "runs.jsonl")
    code = digest_code(Path(__file__).parent / "planted", Path(__file__))
    records = []
    for run in list_runs(scale):
        record = store.get(code, run, scale)
        if record is None:
            record = store.put({**vars(run), **attack(run, scale, work)}, code, run, scale)
        records.append(record)
    columns = ["labels (bound)", "attacked", "epochs", "fresh pairs", "right", "AUC", "TPR"]
    advantages = [f"{name} (95%)" for name in ("margin", "calibrated", "labeler")]
    report("preference_attack", [*columns, *advantages], list(tabulate(records, scale.each)))


if __name__ == "__main__":
    main()

"""Compare what language models learn from the labels of each mechanism, by ε.

    python bench/language_models.py dpo         # an hour of one core; resumable
    python bench/language_models.py lora        # half an hour of one core
    python bench/language_models.py dpo --tiny  # every kind of labels once, in seconds

`dpo`: a GPT-2 of 120,000 parameters, pretrained on a made-up language, learns by DPO from 2,000
pairs. `lora`: one of 30,000 becomes a reward model by LoRA, from labels of 200 or 2,000 labelers
with ten labels each on 2,000 pairs. There it also learns by `uls`, in 80 steps of 50 labelers on
average. *Accuracy* is how often a model orders the sides of 1,000 fresh pairs as the planted
utility does. In the second preference of `lora` only the topic counts, in other words than those of
the prompt: features of responses cannot tell it.

Learning rates were chosen on seed 0, at ε = 3 or without privacy. With `--dialogues` the pairs are
those of `hh_rlhf_test.parquet`, and the model is the one that `bench/gpu.sh pretrain` left.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import report
from _runs import Record, Store, digest_code, select
from planted import models
from planted.grammar import STYLE_AND_TOPIC, Floats, Pairs, Preference, draw_pairs
from planted.models import POSITIONS, Kind, Size
from scipy.stats import t

CLEAN, STATISTIC, ULS, REFERENCE = "no privacy", "statistic", "uls", "rr, forward"
FLIPPED = (REFERENCE, "rr, robust", "rr, plain", "props, hard", "props, soft")
PREFERENCES = {
    "style and topic": STYLE_AND_TOPIC,
    "topic, in other words": Preference(style=0.0, in_other_words=True),
}
PROBES_SEED = 1_000


@dataclass(frozen=True)
class Run:
    """One line of results: who labels, by which mechanism, at which ε (None: no privacy)."""

    preference: str
    labelers: int
    each: int
    labels: str
    epsilon: float | None
    seed: int


@dataclass(frozen=True)
class Setup:
    """How much is computed, and how a table's models learn: fields of TRL's configurations."""

    kind: Kind
    size: Size
    learning: dict[str, Any]
    noisy: dict[str, Any]
    lora: str | None = None
    features: str = "text+length"
    pairs: int = 2_000
    probes: int = 1_000
    seeds: int = 3
    cohort: int = 50
    steps: int = 80


_SHARED = {"max_length": POSITIONS, "bf16": False, "use_cpu": True}
_OF_LORA = {**_SHARED, "per_device_train_batch_size": 64, "per_device_eval_batch_size": 128}
SETUPS = {
    "dpo": Setup(
        "dpo",
        Size(64, 2, (15, 19)),
        {
            **_SHARED,
            "beta": 0.1,
            "learning_rate": 5e-4,
            "num_train_epochs": 2,
            "per_device_train_batch_size": 32,
            "per_device_eval_batch_size": 32,
            "warmup_steps": 0.1,
        },
        {},
    ),
    "lora": Setup(
        "reward",
        Size(32, 2, (3, 5)),
        {**_OF_LORA, "learning_rate": 2e-2, "max_steps": 100},
        {**_OF_LORA, "learning_rate": 1e-2},
        "r=4,alpha=16",
        "length+style+text",
        seeds=2,
    ),
}


def list_runs(table: str, setup: Setup, *, tiny: bool, dialogues: bool) -> Iterator[Run]:
    """Yield all runs of a table, those of a seed after each other."""
    preferences = ["dialogues"] if dialogues else list(PREFERENCES)
    for seed in range(setup.seeds):
        if table == "dpo":
            first = preferences[0]
            cells = [(1.0, 2), (4.0, 2), (1.0, 10)]
            yield Run(first, setup.pairs // 2, 2, CLEAN, None, seed)
            for epsilon, each in cells[:1] if tiny or dialogues else cells:
                # At ten labels of each labeler, nothing is left for the others to work with.
                for labels in (*(FLIPPED if each == 2 else FLIPPED[:1]), STATISTIC):
                    yield Run(first, setup.pairs // each, each, labels, epsilon, seed)
            continue
        for preference in preferences:
            for labelers in (12,) if tiny else (200, 2_000):
                yield Run(preference, labelers, 10, CLEAN, None, seed)
                for epsilon in (8.0,) if tiny else (3.0,) if dialogues else (1.0, 3.0, 8.0):
                    yield Run(preference, labelers, 10, STATISTIC, epsilon, seed)
                    yield Run(preference, labelers, 10, ULS, epsilon, seed)


def learn(run: Run, setup: Setup, base: Path, pairs: Pairs, probes: Pairs, work: Path) -> Floats:
    """Return the margins of the probes by a model that learned from the labels of a run."""
    answers = models.ask(pairs, run.labelers, run.each, run.seed)
    settings = {**setup.learning, "seed": run.seed}
    if run.epsilon is None:
        return models.train(setup.kind, base, answers.raw(), probes, settings, lora=setup.lora)
    mechanism, _, way = run.labels.partition(", ")
    name = f"{mechanism}-{way}" if mechanism == "props" else mechanism
    place = f"{name}-{run.preference[:5]}-{run.labelers}-{run.each}-{run.epsilon:g}-{run.seed}"
    path = work / place.replace(" ", "-")
    options: dict[str, Any] = {}
    if mechanism == STATISTIC:
        options = {"features": setup.features}
    elif mechanism in ("props", ULS):
        of_uls = mechanism == ULS
        config = {**(setup.noisy if of_uls else setup.learning), "seed": run.seed}
        file = models.write_settings(config, path.with_suffix(".yaml"))
        options = {"learner": setup.kind, "model": str(base), "train_config": file}
        cohort = min(1.0, setup.cohort / run.labelers)
        sampling = {"sampling_probability": cohort, "steps": setup.steps, "weighting": "mean"}
        options |= {"lora": setup.lora, **sampling} if of_uls else {"combine": way}
    rows = models.release(mechanism, answers, run.epsilon, path, **options)
    if mechanism in ("props", ULS):
        return models.score(setup.kind, path / "model", base, probes, settings)
    loss = way or "auto"
    return models.train(setup.kind, base, rows, probes, settings, loss=loss, lora=setup.lora)


def finish(
    table: str, work: Path, *, tiny: bool, dialogues: bool, labels: Sequence[str] = ()
) -> list[Record]:
    """Return the records of a table; those that are missing are run."""
    models.be_quiet()
    setup, corpus = SETUPS[table], None
    if dialogues:
        from gpu.dialogues import load_corpus, setup_for

        corpus = load_corpus(tiny=tiny)
        setup = setup_for(setup, len(corpus.training), tiny=tiny)
    elif tiny:
        setup = _shrink(setup)
    here = Path(__file__).parent
    code = digest_code(here / "planted", here / "gpu", Path(__file__))
    store = Store(work / "runs.jsonl")
    records = []
    for run in list_runs(table, setup, tiny=tiny, dialogues=dialogues):
        if labels and run.labels not in labels:
            continue
        record = store.get(code, run, setup)
        if record is None:
            if corpus is not None:
                base, pairs, probes = work.parent / "base", corpus.training, corpus.probes
            else:
                base = models.pretrain(setup.size, work)
                preference, length = PREFERENCES[run.preference], setup.size.sentences
                pairs = draw_pairs(setup.pairs, run.seed, length, preference)
                probes = draw_pairs(setup.probes, PROBES_SEED, length, preference)
            start = time.perf_counter()
            right = (learn(run, setup, base, pairs, probes, work) > 0) == (probes.advantage > 0)
            seconds = round(time.perf_counter() - start, 1)
            found = {**vars(run), "accuracy": float(np.mean(right)), "seconds": seconds}
            record = store.put(found, code, run, setup)
        records.append(record)
    return records


def _shrink(setup: Setup) -> Setup:
    few = {"per_device_train_batch_size": 16}
    learning = {**setup.learning, **few, "max_steps": 3}
    noisy = {**setup.noisy, **few}
    size = Size(16, 1, (3, 5), steps=3)
    return Setup(
        *(setup.kind, size, learning, noisy, setup.lora, setup.features),
        pairs=40,
        probes=16,
        seeds=1,
        cohort=4,
        steps=2,
    )


def tabulate(records: list[Record]) -> Iterator[list[str]]:
    """Yield a row for each kind of labels: accuracy, by seed, and the difference to `rr`."""
    groups = ("preference", "labelers", "each", "labels", "epsilon")
    for key in dict.fromkeys(tuple(record[name] for name in groups) for record in records):
        cells = dict(zip(groups, key, strict=True))
        found = select(records, **cells)
        others = select(records, **{**cells, "labels": REFERENCE})
        less = {other["seed"]: other["accuracy"] for other in others}
        gaps = [r["accuracy"] - less[r["seed"]] for r in found if r["seed"] in less]
        values = [record["accuracy"] for record in found]
        yield [
            *(str(value) for value in key[:3]),
            "" if key[4] is None else f"{key[4]:g}",
            key[3],
            f"{np.mean(values):.3f}",
            ", ".join(f"{value:.3f}" for value in values),
            "" if key[3] == REFERENCE else format_interval(gaps),
        ]


def format_interval(values: Sequence[float]) -> str:
    """Return the mean and Student's 95% interval; of one value there is none."""
    if not values:
        return ""
    mean, text = float(np.mean(values)), f"{np.mean(values):+.3f}"
    if len(values) > 1:
        half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
        text += f" [{mean - half:+.3f}, {mean + half:+.3f}]"
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing; print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    work = Path(tempfile.gettempdir()) / "labelguard-language-models"
    parser.add_argument("table", choices=list(SETUPS))
    parser.add_argument("--work", type=Path, default=work, help="models, releases, finished runs")
    parser.add_argument("--tiny", action="store_true", help="a few pairs, to see that it runs")
    parser.add_argument("--dialogues", action="store_true", help="124M parameters; wants a GPU")
    parser.add_argument("--labels", action="append", help="this kind alone; repeatable")
    options = parser.parse_args(arguments)
    place = "-".join([options.table, *(["tiny"] if options.tiny else [])])
    asked = {"tiny": options.tiny, "dialogues": options.dialogues, "labels": options.labels or ()}
    records = finish(options.table, options.work / place, **asked)
    columns = ["preference", "labelers", "labels each", "ε", "labels", "accuracy", "by seed"]
    columns.append(f"less {REFERENCE} (95%)")
    report(f"language_models {options.table}", columns, list(tabulate(records)))
    if torch.cuda.is_available():
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()

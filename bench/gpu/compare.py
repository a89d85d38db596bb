"""What DPO learns from each mechanism's labels at 124M parameters, ε = 1, two labels a labeler.

    bench/gpu.sh compare        # after `bench/gpu.sh pretrain`

One half of the dialogues is labelled by simulated labelers (the file has none) and released; a
reward model trained without privacy on the other half judges what the models answer to prompts that
nobody trained on. Told of every kind of labels: how often its implicit reward agrees with the
planted preference and with the file's labels on these prompts; for PROPS the estimated error of the
first stage beside the true one (props, Table 6); wins, ties and losses of its answers against those
of randomized response (props, Tables 1 to 3, in shape).

Writes compare.json; runs that are in it are not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from dpo.labels import Budget
from dpo.scoring import scored
from dpo.training import VARIANTS, Outcome, Problem
from labelguard_trainer import RewardConfig, RewardTrainer
from numpy.typing import ArrayLike
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback

from gpu import corpus, outputs
from gpu.corpus import Corpus, Dialogues

BUDGET = Budget(epsilon=1.0, labels=2)
OPPONENT = "RR, forward"
COMPARED = ("clean", OPPONENT, "RR, plain", "PROPS, hard", "PROPS, soft", "teacher")
ANSWER_TOKENS = 64
_SEED = 0


@dataclass(frozen=True)
class WinTieLoss:
    """Pairwise comparisons of two models' responses by a judge."""

    wins: int
    """the first model's response was preferred in both positions"""
    ties: int
    """neither was"""
    losses: int
    """the second model's was preferred in both positions"""


def win_tie_loss(shown_first: ArrayLike, shown_second: ArrayLike) -> WinTieLoss:
    """Count a judge's margins of the first model's response over the second's, both shape (n,).

    `shown_first` are its margins with the first model's response shown first, `shown_second` with
    the two swapped: a judge that favours a position must not decide. What is not preferred both
    times is a tie (PROPS A.7 asks for an order that does not matter; its judge saw one).
    """
    one, two = (np.asarray(values, np.float64) for values in (shown_first, shown_second))
    wins = int(((one > 0) & (two > 0)).sum())
    losses = int(((one < 0) & (two < 0)).sum())
    return WinTieLoss(wins, len(one) - wins - losses, losses)


def settings(*, tiny: bool) -> dict[str, Any]:
    """Fields of `DPOConfig` and `RewardConfig` that all runs share."""
    on_gpu = torch.cuda.is_available()
    return {
        "learning_rate": 5e-5,
        "num_train_epochs": 1 if tiny else 2,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 32,
        "warmup_steps": 0.1,
        "max_length": 512,
        "activation_checkpointing": False,
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
    }


def problem(found: Corpus, base: Path, directory: Path, *, tiny: bool) -> Problem:
    """The pairs that are labelled, and the probes, with the base model's log-probabilities."""
    shared = {"beta": 0.1, **settings(tiny=tiny)}
    tokens, probe_tokens = (
        scored(name, pairs, base, shared, directory)
        for name, pairs in (("training", found.training), ("probes", found.probes))
    )
    return Problem(
        _SEED, directory, base, shared, found.training, tokens, found.probes, probe_tokens
    )


def trained_judge(pairs: Dialogues, base: Path, directory: Path, *, tiny: bool) -> RewardTrainer:
    """A reward model of the labels of other simulated labelers, as they are."""
    first = pairs.labels(np.random.default_rng((_SEED, 3))).astype(bool)
    config = RewardConfig(
        str(directory / "judge"),
        non_private=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **settings(tiny=tiny),
    )
    trainer = RewardTrainer(str(base), config, train_dataset=_texts(pairs, first))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def answers(model: Path, prompts: list[str], *, batch: int = 64) -> list[str]:
    """Greedy continuations, of at most `ANSWER_TOKENS` tokens, none repeating three tokens."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    policy = AutoModelForCausalLM.from_pretrained(model).to(device).eval()
    found: list[str] = []
    for start in range(0, len(prompts), batch):
        asked = tokenizer(
            prompts[start : start + batch],
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=512 - ANSWER_TOKENS,
        ).to(device)
        said = policy.generate(
            **asked, max_new_tokens=ANSWER_TOKENS, do_sample=False, no_repeat_ngram_size=3
        )
        answered = said[:, asked["input_ids"].shape[1] :]
        found += tokenizer.batch_decode(answered, skip_special_tokens=True)
    return found


def against(
    judge: RewardTrainer, prompts: list[str], own: list[str], other: list[str]
) -> dict[str, int]:
    """Wins, ties and losses of `own`; answers that are equal are ties."""
    pairs = {"prompt": prompts, "first": own, "second": other}
    rows = [row for row, (a, b) in enumerate(zip(own, other, strict=True)) if a != b]
    if not rows:
        return {"wins": 0, "ties": len(own), "losses": 0}
    kept = {name: [column[row] for row in rows] for name, column in pairs.items()}
    sides = {"prompt": kept["prompt"], "chosen": kept["first"], "rejected": kept["second"]}
    swapped = {"prompt": kept["prompt"], "chosen": kept["second"], "rejected": kept["first"]}
    shown_first = judge.margins(Dataset.from_dict(sides))
    counted = win_tie_loss(shown_first, -judge.margins(Dataset.from_dict(swapped)))
    ties = counted.ties + len(own) - len(rows)
    return {"wins": counted.wins, "ties": ties, "losses": counted.losses}


def record(outcome: Outcome, probes: Dialogues, seconds: float) -> dict[str, Any]:
    """What is told of a run."""
    votes = outcome.margins > 0
    return {
        "planted": float(np.mean(votes == (probes.advantage > 0))),
        "human": float(np.mean(votes == probes.human.astype(bool))),
        "seconds": round(seconds, 1),
        **outcome.details,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is missing; prints numbers, never a text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    outputs.add_argument(parser)
    options = parser.parse_args(arguments)
    out, tiny = options.out, options.tiny
    found = corpus.corpus(tiny=tiny)
    shared = problem(found, out / "base", out, tiny=tiny)
    told = _read(out / "compare.json") or _begun(len(found.training))
    for name in COMPARED:
        if name in told["runs"]:
            continue
        start = time.perf_counter()
        outcome = VARIANTS[name](shared, BUDGET, out / "runs" / name)
        told["runs"][name] = record(outcome, found.probes, time.perf_counter() - start)
        outputs.write(out, "compare", told)
        print(name, told["runs"][name], flush=True)
    if "judge" not in told:
        told |= _judged(found, out, tiny=tiny)
        outputs.write(out, "compare", told)
    print({name: told[name] for name in ("judge", "against")})


def _begun(pairs: int) -> dict[str, Any]:
    return {
        "machine": outputs.machine(),
        "labelers": "simulated",
        "pairs": pairs,
        "flip_probability": BUDGET.flip_probability,
        "signal": BUDGET.signal(pairs),
        "opponent": OPPONENT,
        "runs": {},
    }


def _judged(found: Corpus, out: Path, *, tiny: bool) -> Mapping[str, Any]:
    """How good the judge is, and what it says of all models' answers against the opponent's."""
    judge = trained_judge(found.judging, out / "base", out, tiny=tiny)
    probes = found.probes
    margins = judge.margins(_texts(probes, np.ones(len(probes), bool)))
    said = {name: answers(out / "runs" / name / "model", probes.prompt) for name in COMPARED}
    return {
        "judge": {"planted": float(np.mean((margins > 0) == (probes.advantage > 0)))},
        "against": {
            name: against(judge, probes.prompt, said[name], said[OPPONENT])
            for name in COMPARED
            if name != OPPONENT
        },
    }


def _texts(pairs: Dialogues, first: Any) -> Dataset:
    both = list(zip(pairs.first, pairs.second, first, strict=True))
    return Dataset.from_dict(
        {
            "prompt": pairs.prompt,
            "chosen": [a if wanted else b for a, b, wanted in both],
            "rejected": [b if wanted else a for a, b, wanted in both],
        }
    )


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


if __name__ == "__main__":
    main()

"""What alignment gains from a private release: SFT, DPO, best-of-N and reinforcement learning.

    python bench/alignment.py --markdown        # about 40 minutes on two idle cores; resumable
    python bench/alignment.py --tiny            # every method once, in a minute
    python bench/alignment.py --private records # whole records private, by ε; then T_PPO

A GPT-2 of 0.4 million parameters, pretrained on a made-up language, learns what 500 simulated
labelers with ten labels each prefer, from one release at (ε, 1e-5). *True reward*: what the
labelers' preferences were drawn from, of responses to 256 fresh prompts. `RL, no privacy` has the
reward of a head of the same form that saw the same labels without noise. Every finished run is a
line of `runs.jsonl` in `--work`, and is not run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from alignment_runs import records as records_runs
from alignment_runs.methods import METHODS
from alignment_runs.problem import TINY, Problem, Scale
from utility.tables import markdown, plain

COLORS = {
    "RL": "#0b6e4f",
    "RL, no privacy": "#777777",
    "best-of-N": "#c1440e",
    "DPO": "#3b5ba5",
}
FIGURE = Path(__file__).resolve().parents[1] / "docs" / "figures" / "alignment"
COLUMNS = (
    "method",
    "true reward",
    "by seed",
    "of no privacy",
    "wins/ties/losses",
    "KL",
    "distance",
)


def _run(method: str, seed: int, epsilon: float, scale: Scale, work: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    directory = work / f"seed-{seed}"
    directory.mkdir(parents=True, exist_ok=True)
    record = METHODS[method](Problem(scale, seed, directory), epsilon)
    return {"method": method, "seed": seed, "epsilon": epsilon, **record}


def _run_seed(
    methods: Sequence[str], seed: int, epsilon: float, scale: Scale, work: Path
) -> list[dict[str, Any]]:
    """The methods of one seed begin with one model: they run one after the other."""
    return [_run(method, seed, epsilon, scale, work) for method in methods]


def records(epsilon: float, scale: Scale, work: Path, workers: int) -> list[dict[str, Any]]:
    """Return the records of all runs; those that are missing are run."""
    work.mkdir(parents=True, exist_ok=True)
    file = work / "runs.jsonl"
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {(r["method"], r["seed"]) for r in done if r["epsilon"] == epsilon}
    missing = {
        seed: [method for method in METHODS if (method, seed) not in known]
        for seed in range(scale.seeds)
    }
    torch.set_num_threads(1)
    _ = Problem(scale, 0, work / "seed-0").base  # made once, before several need it
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        begun = [
            pool.submit(_run_seed, methods, seed, epsilon, scale, work)
            for seed, methods in missing.items()
            if methods
        ]
        for future in as_completed(begun):
            for record in future.result():
                done.append(record)
                with file.open("a") as lines:
                    lines.write(json.dumps(record) + "\n")
    return [record for record in done if record["epsilon"] == epsilon]


def table(found: Sequence[dict[str, Any]]) -> list[Sequence[str]]:
    """Return a line for each method: means over seeds, and each seed."""
    of = {(r["method"], r["seed"]): r for r in found}
    seeds = sorted({seed for _, seed in of})
    rows: list[Sequence[str]] = [COLUMNS]
    for method in METHODS:
        here = [of[method, seed] for seed in seeds]
        means = [np.mean(r["rewards"]) for r in here]
        starts = [np.mean(of["SFT", seed]["rewards"]) for seed in seeds]
        best = [np.mean(of["RL, no privacy", seed]["rewards"]) for seed in seeds]
        gain = np.mean(best) - np.mean(starts)
        share = (np.mean(means) - np.mean(starts)) / gain if gain else np.nan
        rows.append(
            (
                method,
                f"{np.mean(means):+.2f}",
                ", ".join(f"{value:+.2f}" for value in means),
                f"{share:.0%}",
                _against([r["rewards"] for r in here], [of["SFT", s]["rewards"] for s in seeds]),
                f"{np.mean([r['kl'] for r in here]):.1f}",
                f"{np.mean([r['distance'] for r in here]):.2f}",
            )
        )
    return rows


def _against(rewards: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> str:
    """Wins, ties (within 1 point) and losses against another, in percent."""
    difference = np.concatenate([np.subtract(*both) for both in zip(rewards, others, strict=True)])
    shares = (difference > 1).mean(), (np.abs(difference) <= 1).mean(), (difference < -1).mean()
    return "/".join(f"{100 * share:.0f}" for share in shares)


def at_equal_kl(found: Sequence[dict[str, Any]]) -> list[tuple[float, float, float]]:
    """Return of each seed a KL, and the true rewards of both policies at it.

    The KL is the largest that both reach; curves are smoothed over three points.
    """
    of = {(r["method"], r["seed"]): r for r in found}
    results = []
    for seed in sorted({seed for _, seed in of}):
        curves = [_smooth(of[method, seed]["curve"]) for method in ("RL", "RL, no privacy")]
        kl = min(curve[0].max() for curve in curves)
        rewards = [float(np.interp(kl, *curve)) for curve in curves]
        results.append((float(kl), rewards[0], rewards[1]))
    return results


def _smooth(curve: Sequence[Sequence[float]]) -> tuple[Any, Any]:
    kl, truth = (np.convolve(np.array(curve)[:, k], np.ones(3) / 3, "valid") for k in (0, 1))
    order = np.argsort(kl)
    return kl[order], truth[order]


def draw(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the curves of true reward against KL as SVG and PNG."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for method, color in COLORS.items():
        for number, record in enumerate(r for r in found if r["method"] == method):
            label = method if not number else None
            curve = np.array(record.get("curve") or [(record["kl"], np.mean(record["rewards"]))])
            style = "o" if len(curve) == 1 else "-"
            axes.plot(curve[:, 0], curve[:, 1], style, color=color, label=label, linewidth=1)
    axes.set(xlabel="KL from the fine-tuned model, nats a response", ylabel="true reward")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    with rc_context({"svg.hashsalt": "labelguard", "svg.fonttype": "none"}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"), dpi=120, metadata={"Software": None})


def whole_records(scale: records_runs.RecordsScale, work: Path, workers: int) -> list[Any]:
    """Return the records of all runs with whole records private; those that are missing are run."""
    work.mkdir(parents=True, exist_ok=True)
    problem = records_runs.RecordsProblem(scale, 0, work / "seed-0")
    _ = problem.base, problem.public_reward  # made once, before several need them
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        begun = [
            pool.submit(_run_records, scale, seed, work / f"seed-{seed}", setting)
            for setting in records_runs.settings()
            for seed in range(scale.seeds)
        ]
        return [one.result() for one in begun]


def _run_records(scale: records_runs.RecordsScale, seed: int, work: Path, setting: Any) -> Any:
    torch.set_num_threads(1)
    return records_runs.run(scale, seed, work, setting)


def table_of_records(found: Sequence[dict[str, Any]], by: str) -> list[Sequence[str]]:
    """Return a line for each ε, or for each number of updates at one ε: means over seeds."""
    rows: list[Sequence[str]] = [(by, "fine-tuned", "policy", "by seed")]
    for value in sorted({one[by] for one in found}):
        here = [one for one in found if one[by] == value]
        rows.append(
            (
                "∞" if np.isinf(value) else f"{value:g}",
                f"{np.mean([one['sft'] for one in here]):+.2f}",
                f"{np.mean([one['rl'] for one in here]):+.2f}",
                ", ".join(f"{one['rl']:+.2f}" for one in here),
            )
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing; print the table, and the comparison at equal KL."""
    options = _parser().parse_args(arguments)
    if options.private:
        return _main_of_records(options)
    scale = TINY if options.tiny else Scale()
    work = options.work / ("tiny" if options.tiny else "full")
    found = records(options.epsilon, scale, work, options.workers)
    shown = markdown if options.markdown else plain
    print(shown(table(found)))
    equal = at_equal_kl(found)
    for seed, (kl, private, exact) in enumerate(equal):
        print(f"seed {seed}: at KL {kl:.1f} RL {private:+.2f}, without privacy {exact:+.2f}")
    if options.write_docs:
        draw(found, FIGURE)
    beats = all(
        np.mean(a["rewards"]) > np.mean(b["rewards"])
        for a in found
        for b in found
        if a["method"] == "RL, no privacy" and b["method"] == "SFT" and a["seed"] == b["seed"]
    )
    print(json.dumps({"rl_without_privacy_beats_sft_in_every_seed": beats}))
    return 0 if beats or options.tiny else 1


def _main_of_records(options: argparse.Namespace) -> int:
    shown = markdown if options.markdown else plain
    scale = records_runs.TINY_RECORDS if options.tiny else records_runs.RecordsScale()
    work = options.work / ("records-tiny" if options.tiny else "records")
    found = whole_records(scale, work, options.workers)
    print(f"untrained {np.mean([one['untrained'] for one in found]):+.2f}")
    public = [one for one in found if one["reward"] == "public"]
    once = [one for one in public if one["updates"] == 1]
    print(shown(table_of_records(once, "epsilon")))
    print(shown(table_of_records([one for one in public if one["epsilon"] == 4], "updates")))
    people = [one for one in found if one["reward"] == "people"]
    print(shown(table_of_records(people, "epsilon")))
    for one in people:
        print(
            f"reward model, seed {one['seed']}, ε = {one['epsilon']:g}: {one['accuracy']:.3f} right"
        )
    means = [
        np.mean([one["rl"] for one in once if one["epsilon"] == epsilon])
        for epsilon in records_runs.EPSILONS
    ]
    before = np.mean([one["untrained"] for one in once])
    gains = bool(min(means) > before)
    print(json.dumps({"ordered_by_epsilon": means == sorted(means), "every_epsilon_gains": gains}))
    return 0 if gains or options.tiny else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    work = Path(tempfile.gettempdir()) / "labelguard-alignment"
    parser.add_argument("--work", type=Path, default=work, help="models, releases, finished runs")
    parser.add_argument("--epsilon", type=float, default=1.0, help="of the release")
    parser.add_argument("--private", choices=["records"], help="whole records, in place of labels")
    parser.add_argument("--tiny", action="store_true", help="a few pairs, to see that it runs")
    parser.add_argument("--workers", type=int, default=2, help="seeds at a time")
    parser.add_argument("--markdown", action="store_true", help="the table for the documentation")
    parser.add_argument("--write-docs", action="store_true", help="the figure into docs/figures")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""The card of a trained model: what it learned from, and the guarantee that it carries onward.

Beside it the picture of a training: loss and agreement against steps.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from labelguard.release.card import TRAINING, guarantee
from labelguard.storage.files import write_atomically
from labelguard.terms import budget_of, counted
from labelguard_trainer.training.evaluate import Accuracy, Evaluation
from labelguard_trainer.training.request import Learned, Source, front_matter, released
from labelguard_trainer.training.settings import Kind, public_name, public_settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NO_GUARANTEE = (
    "**No guarantee: this model was trained on raw labels (`--non-private`). What people said may "
    "be read from it.**"
)
_TASKS = {"dpo": "text-generation", "reward": "text-classification"}


@dataclass(frozen=True)
class Training:
    """What was trained, on what and how; `config` and `lora` are what differs from the defaults.

    `base` is what the base model learned from, `adapter` whether the result is one.
    """

    kind: Kind
    model: str
    identity: str
    base: tuple[Learned, ...]
    adapter: bool
    loss: str
    config: Mapping[str, Any]
    lora: Mapping[str, Any] | None
    rows: int
    left_out: int
    held_out: int
    steps: int
    versions: Mapping[str, str]


def to_markdown(source: Source, training: Training, evaluation: Evaluation) -> str:
    """The card, with the front matter of a Hugging Face model card.

    Post-processing: a function of a release has the release's ε and δ, however long it trains.
    """
    rows = "\n".join(f"| {name} | {value} |" for name, value in _facts(source, training))
    found = "\n".join(f"- {line}" for line in results(evaluation)) or "- nothing was held out"
    what = "Language model aligned by DPO" if training.kind == "dpo" else "Reward model"
    return f"""\
---
library_name: {"peft" if training.adapter else "transformers"}
pipeline_tag: {_TASKS[training.kind]}
tags:
- {training.kind}
- labelguard
- {"differential-privacy" if source.card else "non-private"}
{front_matter(_learned(source, training))}---

{_onward(source, training)}

# {what}

| | |
|---|---|
{rows}

**Evaluation.**{_told(source)}

{found}
{_not_protected(source)}"""


def _told(source: Source) -> str:
    return " No raw label was read for it." if source.card else ""


def _learned(source: Source, training: Training) -> tuple[Learned, ...]:
    """All releases that the model is a function of, each once; none for raw labels."""
    if source.card is None:
        return ()
    return (*_before(source, training), released(source.card, source.digest))


def _before(source: Source, training: Training) -> list[Learned]:
    """The base model's releases, but for the one that it is trained on again at no price."""
    return [one for one in training.base if one.sums != source.digest]


def _onward(source: Source, training: Training) -> str:
    if source.card is None:
        return NO_GUARANTEE
    before = _before(source, training)
    if not before:
        base = (
            "the guarantee is the release's own, at no further price (post-processing), provided "
            "that the base model is public, or learned nothing from these labelers."
        )
    else:
        names = "; ".join(
            f"`{one.release}`, {budget_of(asdict(one))} for every {one.unit}" for one in before
        )
        base = (
            f"so is the base model, of other releases: {names}. **Their prices and this one's "
            "add** for whoever is in several, but of releases of one project all policies together "
            "give no more than its ceiling."
        )
    return (
        f"{guarantee(source.card)}\n\nThis model is a function of release `{source.release}`, of "
        f"public texts and of the base model; {base}"
    )


def _not_protected(source: Source) -> str:
    if source.card is None:
        return ""
    lines = "\n".join(f"- {line}" for line in source.card["not_protected"])
    return f"\n**Not protected:**\n\n{lines}\n"


def _facts(source: Source, training: Training) -> Iterator[tuple[str, str]]:
    """What was done, as rows of names and values."""
    if source.card is None:
        yield "raw labels", f"file with SHA-256 `{source.digest}`"
    else:
        yield "release", f"`{source.release}`, `SHA256SUMS` with SHA-256 `{source.digest}`"
        yield "mechanism", f"`{source.card['mechanism']}`"
    yield "base model", f"`{public_name(training.model)}` (`{training.identity}`)"
    yield "rows", f"{training.rows:,} trained on, {training.held_out:,} held out (by item)"
    if training.left_out:
        yield "left out", f"{training.left_out:,} whose sides are equal once they are cut to length"
    yield "loss", f"`{training.loss}`: {_why(source, training.loss)}"
    yield "steps", f"{training.steps:,}"
    config = public_settings(training.config) if training.config else None
    for name, given in (("config", config), ("LoRA", training.lora)):
        if given:
            yield name, ", ".join(f"`{key}: {value}`" for key, value in sorted(given.items()))
    yield "versions", ", ".join(f"{name} {value}" for name, value in training.versions.items())


def _why(source: Source, loss: str) -> str:
    if source.card is None:
        return "raw labels are taken as they are." if loss == "plain" else "what the file says."
    if loss == source.train_with:
        return f"what the release's card says. {TRAINING[loss]}"
    return f"chosen by hand; the release's card says `{source.train_with}`."


def results(evaluation: Evaluation) -> Iterator[str]:
    """An evaluation in sentences, each with what it may be read as."""
    if found := evaluation.flipped:
        doubt = "; uninformative: too few rows for their noise" if found.uninformative else ""
        yield (
            f"accuracy {_shown(found)} on {counted(found.rows, 'held-out row')}, corrected for "
            f"their flips (1 − γ̂){doubt}{_beside(found.baselines)}"
        )
    if taught := evaluation.teacher:
        yield (
            f"log loss {taught.log_loss:.3f} to the teacher's probabilities (theirs: "
            f"{taught.least_log_loss:.3f}), agreement {taught.agreement:.3f}, on "
            f"{counted(taught.rows, 'held-out row')}; with the teacher, not with people"
            f"{_beside(taught.baselines)}"
        )
    if plain := evaluation.labels:
        yield (
            f"agreement {plain.agreement:.3f} ± {plain.standard_error:.3f} with the labels of "
            f"{counted(plain.rows, 'held-out row')} as they were given, whatever is wrong in them"
            f"{_beside(plain.baselines)}"
        )
    if probed := evaluation.probes:
        yield (
            f"accuracy {_shown(probed)} on {counted(probed.rows, 'pair')} that the user declared "
            f"public{_beside(probed.baselines)}"
        )
    if evaluation.left_out:
        yield (
            f"not measured: {counted(evaluation.left_out, 'held-out row')} whose sides are equal "
            "once they are cut to length"
        )


def _shown(found: Accuracy) -> str:
    """An accuracy and where it lies with 95% confidence, as far as that is possible."""
    ends = (found.accuracy + side * 1.96 * found.standard_error for side in (0, -1, 1))
    value, low, high = (min(max(end, 0.0), 1.0) for end in ends)
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def _beside(baselines: Mapping[str, float]) -> str:
    """What says as much without training."""
    values = (
        f"{name.replace('_', ' ')} {min(max(value, 0.0), 1.0):.3f}"
        for name, value in baselines.items()
    )
    return f"; beside it: {', '.join(values)}" if baselines else ""


Lines: TypeAlias = Sequence[Mapping[str, Any]]

_PANELS = (("loss", "loss"), ("agreement", "agreement with its rows' labels"))
_PARTS = (("", "training", "#0b6e4f"), ("eval_", "held out", "#c1440e"))


def draw(lines: Lines, directory: Path) -> tuple[Path, ...]:
    """Write `curves.svg` and `curves.png` and return them; the same lines, the same bytes.

    `lines` are those of `metrics.jsonl`: `step`, and any of `loss`, `agreement`, and the same of
    held-out rows with `eval_` before it.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, title) in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
        _panel(axes, lines, name)
        axes.set(xlabel="step", title=title)
    paths = []
    # A hash with a salt of its own, and no date: else each picture would be another file.
    with rc_context({"svg.hashsalt": "labelguard", "svg.fonttype": "none"}):
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=120, metadata=metadata)
            path = directory / f"curves.{kind}"
            write_atomically(path, buffer.getvalue())
            paths.append(path)
    return tuple(paths)


def _panel(axes: Axes, lines: Lines, name: str) -> None:
    for prefix, label, color in _PARTS:
        found = [line for line in lines if line.get(prefix + name) is not None]
        if found:
            steps, values = ([line[key] for line in found] for key in ("step", prefix + name))
            axes.plot(steps, values, ".-", color=color, label=label, linewidth=1)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False)

"""The card of a trained model: what it learned from, and the guarantee that it carries onward.

Beside it the picture of a training: loss and agreement against steps. With it a model goes to
the Hub, where the card is README.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

from labelguard.errors import LabelguardError
from labelguard.release.card import fill_block, format_guarantee
from labelguard.release.model_card import (
    RAW,
    front_matter,
    list_learned_releases,
    read_front_matter,
)
from labelguard.release.publication import PublicFile, send_files
from labelguard.release.writer import read_sums
from labelguard.storage.files import SUMS, find_changed_file, format_sums, write_atomically
from labelguard.text import (
    Progress,
    escape_controls,
    format_budget,
    no_progress,
    pluralize,
    read_template,
)
from labelguard_trainer.training.evaluate import Accuracy, ModelEvaluation, TrainingResult
from labelguard_trainer.training.request import TrainingRequest
from labelguard_trainer.training.rows import RawLabels
from labelguard_trainer.training.settings import hide_directory, select_public_settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TEMPLATE = Path(__file__).with_name("training_card.md.j2")


def to_markdown(
    request: TrainingRequest,
    trained: TrainingResult,
    parameters: Mapping[str, Any],
    *,
    adapter: bool,
) -> str:
    """Return the card, with the front matter of a Hugging Face model card.

    `parameters` has the base model's identity and the versions of libraries; the result may be an
    adapter. Post-processing: a function of a release has the release's ε and δ, however long it
    trains. The base model's releases count too, but for the one that it is trained on again.
    """
    card, digest = request.source.card, request.source.digest
    origin, *others = list_learned_releases(card, digest) if card else (None,)
    sums = {one.sums for one in (origin, *others) if one}
    before = [*others, *(one for one in request.base if one.sums not in sums)]
    learned = (*before, origin) if origin else ()
    return read_template(_TEMPLATE).render(
        adapter=adapter,
        asked=parameters,
        before=[f"`{o.release}`, {format_budget(asdict(o))} for every {o.unit}" for o in before],
        card=card,
        digest=digest,
        front_matter=front_matter(learned, trained.model),
        guarantee=format_guarantee(card) if card else "",
        model=escape_controls(hide_directory(trained.model)).replace("`", "'"),
        results=[*results(trained.evaluation)],
        settings={
            "config": select_public_settings(request.config) if request.config else {},
            "LoRA": request.lora,
        },
        trained=trained,
        why=fill_block("training", train_with=trained.loss),
    )


def results(evaluation: ModelEvaluation) -> Iterator[str]:
    """Yield an evaluation in sentences, each with what it may be read as."""
    if flipped := evaluation.flipped:
        doubt = "; it tells nothing: too few rows for their noise" if flipped.uninformative else ""
        yield (
            f"accuracy {format_accuracy(flipped)} on {pluralize(flipped.rows, 'row')} kept aside, "
            f"corrected for their flips{doubt}{_format_baselines(flipped.baselines)}"
        )
    if taught := evaluation.teacher:
        yield (
            f"log loss {taught.log_loss:.3f} to the teacher's probabilities (theirs: "
            f"{taught.least_log_loss:.3f}), agreement {taught.agreement:.3f}, on "
            f"{pluralize(taught.rows, 'row')} kept aside; with the teacher, not with people"
            f"{_format_baselines(taught.baselines)}"
        )
    if plain := evaluation.labels:
        yield (
            f"agreement {plain.agreement:.3f} ± {plain.standard_error:.3f} with the labels of "
            f"{pluralize(plain.rows, 'row')} kept aside, as they were given, whatever is wrong in "
            f"them{_format_baselines(plain.baselines)}"
        )
    if probed := evaluation.probes:
        yield (
            f"accuracy {format_accuracy(probed)} on {pluralize(probed.rows, 'pair')} that the user "
            f"declared public{_format_baselines(probed.baselines)}"
        )
    if evaluation.left_out:
        yield (
            f"not measured: {pluralize(evaluation.left_out, 'row')} kept aside whose sides are "
            "equal once they are cut to length"
        )


def format_accuracy(measured: Accuracy) -> str:
    """Return an accuracy and where it lies with 95% confidence, as far as that is possible."""
    ends = (measured.accuracy + side * 1.96 * measured.standard_error for side in (0, -1, 1))
    value, low, high = (min(max(end, 0.0), 1.0) for end in ends)
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def _format_baselines(baselines: Mapping[str, float]) -> str:
    """Return what says as much without training."""
    values = (
        f"{name.replace('_', ' ')} {min(max(value, 0.0), 1.0):.3f}"
        for name, value in baselines.items()
    )
    return f"; beside it: {', '.join(values)}" if baselines else ""


Lines: TypeAlias = Sequence[Mapping[str, Any]]

# Names of metrics, and their titles.
Panels: TypeAlias = Sequence[tuple[str, str]]
PANELS: Panels = (("loss", "loss"), ("agreement", "agreement with its rows' labels"))
_PARTS = (("", "training", "#0b6e4f"), ("eval_", "held out", "#c1440e"))


def draw_curves(lines: Lines, directory: Path, panels: Panels) -> None:
    """Write `curves.svg` and `curves.png`; the same lines, the same bytes.

    `lines` are those of `metrics.jsonl`: `step`, and any of the names in `panels`, which go with
    titles, and the same of held-out rows with `eval_` before it.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, title) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        _draw_panel(axes, lines, name)
        axes.set(xlabel="step", title=title)
    # A hash with a salt of its own, and no date: else each picture would be another file.
    with rc_context({"svg.hashsalt": "labelguard", "svg.fonttype": "none"}):
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=120, metadata=metadata)
            write_atomically(directory / f"curves.{kind}", buffer.getvalue())


def _draw_panel(axes: Axes, lines: Lines, name: str) -> None:
    for prefix, label, color in _PARTS:
        entries = [line for line in lines if line.get(prefix + name) is not None]
        if entries:
            steps, values = ([line[key] for line in entries] for key in ("step", prefix + name))
            axes.plot(steps, values, ".-", color=color, label=label, linewidth=1)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False)


_CARD, _ADAPTER, _BASE = "TRAINING_CARD.md", "adapter_config.json", "base_model_name_or_path"
_MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?")


@dataclass(frozen=True)
class PublishedModel:
    """A model that was published."""

    # its directory
    model: str
    # where it is
    where: str


def publish_model(
    model: str | Path,
    to: str,
    *,
    base: str | None = None,
    public: bool = False,
    non_private: bool = False,
    progress: Progress = no_progress,
) -> PublishedModel:
    """Publish a directory that `train` wrote, as it was written, and its card as README.md.

    `to` is `hf:ORG/NAME`, a model of the Hugging Face Hub, private unless `public`. `base` is the
    id by which others find the base model; an adapter that was trained on a directory needs it, and
    has it in place of that path. Again, it changes nothing; another model takes the place of the
    one before.

    Raises `RawLabels` for a model without a guarantee unless `non_private`, and `LabelguardError`
    for a directory with other files than those written, and where `to` cannot take them.
    """
    directory = Path(model)
    expected = read_sums(directory, (_CARD,), "only what labelguard train wrote is published")
    if broken := find_changed_file(directory, expected):
        raise LabelguardError(f"{broken}; nothing was published")
    matter = read_front_matter(directory / _CARD)
    if matter is None or (matter["labelguard"]["learned_from"] == RAW and not non_private):
        raise RawLabels(
            f"{directory} was trained on raw labels: what people said may be read from it; to "
            "publish it without any guarantee: --non-private"
        )
    if base is None and _ADAPTER in expected and "base_model" not in matter:
        raise LabelguardError(
            f"{directory} is an adapter of a model in a directory; name the one that others have: "
            "--base ORG/NAME"
        )
    files = {name: PublicFile(directory / name, digest) for name, digest in expected.items()}
    with TemporaryDirectory(prefix="labelguard-") as scratch:
        if base is not None:
            files |= _rename_base_model(
                directory, base, Path(scratch), adapter=_ADAPTER in expected
            )
        text = format_sums({name: file.sha256 for name, file in files.items()}).encode("ascii")
        files[SUMS] = _write_public_file(Path(scratch) / SUMS, text)
        files["README.md"] = files[_CARD]
        learned = matter["labelguard"]["learned_from"]
        of = RAW if learned == RAW else ", ".join(str(entry.release) for entry in learned)
        title = f"Model of {of or 'public texts'}"
        where = send_files(files, to, "model", title=title, public=public, progress=progress)
    return PublishedModel(str(directory), where)


def _rename_base_model(
    directory: Path, base: str, scratch: Path, *, adapter: bool
) -> Mapping[str, PublicFile]:
    """Return the files that name the base model, written anew with the id that others have."""
    if not _MODEL_ID.fullmatch(base) or Path(base).exists():
        raise LabelguardError(f"--base: expected the id of a model on the Hub, found {base!a}")
    card = (directory / _CARD).read_text(encoding="utf-8").removeprefix("---\n")
    lines = [line for line in card.splitlines(keepends=True) if not line.startswith("base_model:")]
    text = f"---\nbase_model: {json.dumps(base)}\n{''.join(lines)}"
    files = {_CARD: _write_public_file(scratch / _CARD, text.encode())}
    if adapter:
        config = json.loads((directory / _ADAPTER).read_bytes())
        content = json.dumps({**config, _BASE: base}, indent=2).encode()
        files[_ADAPTER] = _write_public_file(scratch / _ADAPTER, content)
    return files


def _write_public_file(path: Path, content: bytes) -> PublicFile:
    path.write_bytes(content)
    return PublicFile(path, hashlib.sha256(content).hexdigest())

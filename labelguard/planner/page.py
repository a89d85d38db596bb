"""A plan as one HTML page that refers to nothing outside itself."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from labelguard.planner.advice import GAIN, NOUNS, named
from labelguard.terms import counted

if TYPE_CHECKING:
    from labelguard.planner.advice import Recommendation
    from labelguard.planner.outcomes import Forecast
    from labelguard.planner.planned import Planned

__all__ = ["HEADINGS", "headline", "page", "summary", "table"]

HEADINGS = (
    "ε",
    "mechanism",
    "accuracy",
    "90% range",
    "label error",
    "released",
    "2× labelers",
    "2× labels",
    "public parameters",
)

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem }
.scroll { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { white-space: nowrap; padding: .25rem .7rem; border-bottom: 1px solid #ddd;
  text-align: right }
th:nth-child(2), td:nth-child(2), th:last-child, td:last-child { text-align: left }
tr.best td { background: #eef7f2; font-weight: 600 }
pre { background: #f4f4f4; padding: .8rem; white-space: pre-wrap; overflow-wrap: anywhere }
img { max-width: 100% }
"""


def table(plan: Planned) -> list[tuple[tuple[str, ...], bool]]:
    """The rows under `HEADINGS`, and whether each is what `--mechanism auto` takes at its ε."""
    rows: list[tuple[tuple[str, ...], bool]] = []
    best = {(one.epsilon, one.automatic, one.max_labels_per_labeler) for one in plan.recommended}
    for found in plan.forecasts:
        shape = found.shape
        parameters = ""
        if shape is not None and found.noise is not None:
            kind = {"ball": "ball", "gaussian": "Gaussian"}[found.noise.kind]
            parameters = f"{counted(shape.components, 'component')}, {kind} noise"
        elif found.flip_probability is not None:
            bound = found.max_labels_per_labeler
            most = "all labels" if bound is None else f"at most {bound} per labeler"
            parameters = f"{most}, flip probability {found.flip_probability.mean:.3f}"
        cells = (
            "–" if found.epsilon is None else f"{found.epsilon:g}",
            named(found),
            f"{found.accuracy.mean:.3f}",
            f"{found.accuracy.low:.3f} to {found.accuracy.high:.3f}",
            f"{found.label_error.mean:.3f}",
            f"{found.released:.0%}",
            _number(found.twice_labelers),
            _number(found.twice_labels),
            parameters,
        )
        of_it = (found.epsilon, found.mechanism, found.max_labels_per_labeler)
        rows.append((cells, of_it in best))
    return rows


def headline(plan: Planned) -> str:
    """What was planned for: counts, δ, features, periods."""
    counts, units = plan.counts, NOUNS[plan.unit]
    periods = f", {plan.periods:,} releases like this one" if plan.periods > 1 else ""
    return (
        f"{counts.labelers:,} {units}, {counts.labels:,} labels of {counts.pairs:,} pairs; "
        f"δ = {plan.delta:g} for each {plan.unit}{periods}; features {plan.features}"
    )


def summary(plan: Planned) -> tuple[str, str]:
    """Say one recommendation, and from where on a release is worth it at all."""
    choice = plan.choice
    last = next((one for one in reversed(plan.recommended) if one.mechanism), plan.recommended[-1])
    said = f"recommended: {choice.words}" if choice else last.words.partition(": ")[2]
    if choice and choice is not last:
        accuracy = {_key(one): one.accuracy.mean for one in plan.forecasts}
        more = accuracy[_key(last)] - accuracy[_key(choice)]
        gain = f"about {100 * more:.0f}" if more > GAIN else "less than 1"
        said += f"; ε = {last.epsilon:g} would gain {gain} of 100 answers"
    return _sentence(said), f"Worth it at all? {_sentence(plan.worth.words)}"


def _key(one: Forecast | Recommendation) -> tuple[float | None, str | None, int | None]:
    return one.epsilon, one.mechanism, one.max_labels_per_labeler


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def page(plan: Planned, png: bytes) -> str:
    """The page, with the picture inside."""
    picture = base64.b64encode(png).decode("ascii")
    notes = "".join(f"<p><strong>Note:</strong> {escape(note)}</p>\n" for note in plan.notes)
    body = "\n".join(
        _line(cells, "td", ' class="best"' if best else "") for cells, best in table(plan)
    )
    others = [one.command for one in plan.recommended if one is not plan.choice and one.command]
    commands = "".join(f"<pre>{escape(one)}</pre>\n" for one in others)
    choice = plan.choice.command if plan.choice else None
    command = f"<pre>{escape(choice)}</pre>\n" if choice else ""
    words = "".join(f"<li>{escape(one.words)}</li>\n" for one in plan.recommended)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>labelguard plan</title>
<style>{_STYLE}</style>
<h1>What a private release may be expected to give</h1>
<p>{escape(headline(plan))}; two labelers are taken to agree on {plan.agreement:.0%} of strict
labels; adjacency {plan.adjacency}.</p>
<p><strong>{escape(summary(plan)[0])}</strong></p>
<p>{escape(summary(plan)[1])}</p>
{command}<ul>
{words}</ul>
{notes}<img alt="Accuracy against epsilon" src="data:image/png;base64,{picture}">
<div class="scroll" tabindex="0" role="region" aria-label="Every mechanism at every ε">
<table>
{_line(HEADINGS, "th", "")}
{body}
</table>
</div>
<p>Accuracy is the share of held-out labelers' strict labels that a linear head predicts; label
error the share of strict labels whose released value differs. Forecasts come from labels simulated
over the real pairs, labelers and counts: no label was read, and nothing was charged. Marked rows
are what <code>--mechanism auto</code> takes.</p>
{"<h2>At another ε</h2>" if commands else ""}
{commands}</html>
"""


def _line(cells: Iterable[str], tag: str, attributes: str) -> str:
    inner = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
    return f"<tr{attributes}>{inner}</tr>"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"

"""Simulated labelers: preference labels that look like a professional annotation project.

Items are drawn (texts and their public qualities), labelers get heavy-tailed numbers of items, and
compare the two responses of each. With x the difference of the qualities (response_a minus
response_b) and theta_u = scale * (shared weights + deviation of labeler u), the utility gap is
z = x . theta_u, and the label follows Davidson (1970):

    P(tie) = nu / (2 cosh(z / 2) + nu),        P(A preferred | no tie) = 1 / (1 + exp(-z)),

that is, Bradley-Terry among strict labels, with ties where the gap is small. `scale` and `nu` are
calibrated to the configured agreement and tie rate; see `calibrate_scale_and_ties`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from labelguard.text import DEFAULT_AGREEMENT, suggest_misspelled_keywords

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Rng = np.random.Generator

# Qualities of a response, in the order of their sentences, and the weights labelers share.
QUALITY_WEIGHTS = {"concrete": 0.85, "complete": 1.0, "long": -0.25, "hedged": -0.6, "polite": 0.33}

_DEVIATION = 0.15  # standard deviation of a labeler's own weight around each shared weight
_COUNT_SPREAD = 1.3  # standard deviation of the log of the expected labels per labeler
_CALIBRATION_DRAWS = 20_000  # standard error of the calibrated agreement: about .002
_TAKE_ROWS = 1 << 20  # rows per Arrow chunk: keeps 32-bit string offsets from overflowing
_FIRST_DAY = np.datetime64("2024-01-08", "us")  # a Monday
_PROFESSIONS = ("physician", "lawyer", "adviser")
_AGES = range(21, 80)
_OCCUPATIONS = ("teacher", "nurse", "bus driver", "chef", "gardener", "carpenter", "librarian")
_QUESTIONS = (
    "A {age}-year-old {occupation} asks about {topic}. What would you advise?",
    "What should a {age}-year-old {occupation} know about {topic}?",
    "How would you explain {topic} to a {age}-year-old {occupation}?",
    "A {occupation} aged {age} is worried about {topic}. What is a sensible first step?",
)


class _Field(NamedTuple):
    """Topics of a profession, and what answers say: always, if concrete, if complete."""

    topics: tuple[str, ...]
    core: str
    concrete: str
    complete: str


_MEDICINE = _Field(
    ("recurring headaches", "exercise asthma", "hay fever", "lower back pain", "travel vaccines"),
    "For {topic}, a talk with the family doctor is the place to start.",
    "Keep a symptom diary for {days} days and bring it to the appointment.",
    "Weigh benefits, side effects and watchful waiting, and ask which signs need urgent care.",
)
_LAW = _Field(
    ("an unpaid overtime claim", "a faulty used car", "a boundary fence", "a non-compete clause"),
    "For {topic}, the written agreement and the dates are the place to start.",
    "Send a dated letter that sets a deadline of {days} days and keep a copy.",
    "Look at time limits, the likely defence, the evidence for both sides, and mediation.",
)
_FINANCE = _Field(
    ("an emergency fund", "a fixed-rate mortgage", "a small inheritance", "life insurance"),
    "For {topic}, a list of income, costs and debts is the place to start.",
    "Ask three providers for written quotes within {days} days and compare total fees.",
    "Compare fees, taxes, risk and access, and check what changes if interest rates rise.",
)
_LONG = (
    "Questions like this come up often, and they look simpler once they are written down.",
    "There is no lack of articles and leaflets on it, and many of them repeat each other.",
)


def _list_sentence_phrasings(field: _Field) -> tuple[tuple[str, str], ...]:
    """Two phrasings of each sentence of a response, in its order; the first always appears."""
    return (
        (field.core, "The usual approach to {topic} is to take stock before deciding anything."),
        (field.concrete, "Write down the main facts and book a review within {days} days."),
        (field.complete, "Check the alternatives, the costs, the risks, and what waiting means."),
        _LONG,
        ("It may well depend, and I cannot be sure.", "Perhaps this case is different."),
        ("Thank you for asking, and do write again.", "I am glad that you asked this early."),
    )


_TOPICS = tuple(
    (_list_sentence_phrasings(f), topic) for f in (_MEDICINE, _LAW, _FINANCE) for topic in f.topics
)
_PAIRS = np.stack(np.triu_indices(2 ** len(QUALITY_WEIGHTS), k=1))  # unequal quality patterns
_CONTENTS = (len(_TOPICS), len(_QUESTIONS), len(_AGES), len(_OCCUPATIONS), _PAIRS.shape[1])
_TIE_TOLERANCE = 1e-13
_MAX_ITEMS = int(np.prod(_CONTENTS))


@suggest_misspelled_keywords
def simulate(
    *,
    labelers: int = 200,
    labels: int = 20_000,
    items: int = 5_000,
    tie_rate: float = 0.08,
    agreement: float = DEFAULT_AGREEMENT,
    seed: int = 0,
) -> pa.Table:
    """A pyarrow table of simulated preference labels, in shuffled order, to try things on.

    labelers: number of labelers, at least 1.
    labels: number of labels in total, between `labelers` and `labelers * items`; the numbers per
        labeler are log-normal, at least 1 and at most `items`.
    items: number of distinct (prompt, pair of responses) items, at most about 10 million.
    tie_rate: expected share of ties among all labels, in [0, 0.9].
    agreement: expected share of equal labels when two labelers give strict labels to the same
        item, in [0.5, 0.9]. 0.5 is coin tossing.
    seed: non-negative; what is asked for alike gives equal tables.

    Columns: `labeler_id`, `prompt`, `response_a`, `response_b` (string), `label` (double: 1.0 if
    response_a is preferred, 0.0 if response_b is, null for a tie), `tie` (bool) and `submitted_at`
    (timestamp[us], UTC, strictly increasing within a labeler). A labeler labels an item at most
    once, the two responses of an item differ, and no two items share a prompt and both responses.

    All columns but `label` and `tie`, and the order of the rows, depend neither on the labels nor
    on `tie_rate` and `agreement`: each step draws from a random stream of its own.

    Raises ValueError if a value is out of range.

    Example:
        >>> table = lg.simulate(labelers=20, labels=400, items=100)
        >>> table.num_rows, table.column_names[:2]
        (400, ['labeler_id', 'prompt'])
    """
    _require_in_range("labelers", labelers, 1, None)
    _require_in_range("items", items, 1, _MAX_ITEMS)
    per_labeler = "labels (from 1 to `items` per labeler)"
    _require_in_range(per_labeler, labels, labelers, labelers * items)
    _require_in_range("tie_rate", tie_rate, 0.0, 0.9)
    _require_in_range("agreement", agreement, 0.5, 0.9)
    _require_in_range("seed", seed, 0, None)
    streams = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(7)]
    item_rng, assignment_rng, time_rng, order_rng, taste_rng, calibration_rng, label_rng = streams

    texts, contrasts = draw_items(items, item_rng)
    labeler, item = _assign_items(labelers, labels, items, assignment_rng)
    submitted_at = _draw_submission_times(labeler, time_rng)
    tastes = _draw_labeler_weights(labelers, taste_rng)
    meetings = _draw_gaps_for_labeler_pairs(contrasts, tastes, labeler, calibration_rng)
    scale, tie_strength = calibrate_scale_and_ties(meetings, agreement, tie_rate)
    gap = scale * np.einsum("rq,rq->r", contrasts[item], tastes[labeler])
    tie = label_rng.random(gap.size) < tie_probability(gap, tie_strength)
    prefers_a = label_rng.random(gap.size) < 1.0 / (1.0 + np.exp(-gap))

    order = order_rng.permutation(labels)
    names = [f"{_PROFESSIONS[u % len(_PROFESSIONS)]}-{u:04d}" for u in range(labelers)]
    columns: dict[str, Any] = {"labeler_id": _take_in_chunks(names, labeler[order])}
    columns |= {column: _take_in_chunks(values, item[order]) for column, values in texts.items()}
    columns["label"] = pa.array(prefers_a[order].astype(np.float64), mask=tie[order])
    columns["tie"] = pa.array(tie[order])
    columns["submitted_at"] = pa.array(submitted_at[order])
    return pa.table(columns)


def _require_in_range(name: str, value: float, low: float, high: float | None) -> None:
    whole = isinstance(low, int)
    if not isinstance(value, int if whole else (int, float)) or isinstance(value, bool):
        raise ValueError(f"{name} must be {'an integer' if whole else 'a number'}, got {value!r}")
    if not (low <= value and (high is None or value <= high)):  # also refuses NaN
        expected = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"{name} must be {expected}, got {value!r}")


def tie_probability(gap: Floats, tie_strength: float) -> Floats:
    """Davidson (1970): ties are likeliest where the gap is 0. The shape of `gap`."""
    return tie_strength / (_compute_win_weight_sum(gap) + tie_strength)


def calibrate_scale_and_ties(
    gaps: Floats, agreement: float, tie_rate: float, precision: float = 2e-12
) -> tuple[float, float]:
    """(scale of the gaps, tie strength ν) for which labelers agree, and tie, as often.

    `gaps` (2, n) are those of two labelers who meet at each of n items. Given a scale, ν follows
    from the tie rate; then the expected agreement of two labelers who are both strict is in closed
    form and grows with the scale.
    """

    def excess(scale: float) -> float:
        z = scale * gaps
        both_strict = np.prod(1 - tie_probability(z, _find_tie_strength(z, tie_rate)), axis=0)
        first, second = np.tanh(z / 2)
        return float(np.average((1 + first * second) / 2, weights=both_strict)) - agreement

    scale = _find_root(excess, 0.0, 64.0, precision)
    return scale, _find_tie_strength(scale * gaps, tie_rate)


def _compute_win_weight_sum(gap: Floats) -> Floats:
    return np.asarray(2 * np.cosh(np.minimum(np.abs(gap), 600) / 2))


def _find_tie_strength(gaps: Floats, tie_rate: float) -> float:
    """ν at which ties have this rate."""
    if tie_rate == 0:
        return 0.0
    flatness = _compute_win_weight_sum(gaps)
    odds = tie_rate / (1 - tie_rate)

    low, high = (math.log(odds * float(end)) for end in (flatness.min(), flatness.max()))
    log_strength = math.log(odds * float(flatness.mean()))
    for _ in range(100):  # by Newton's steps, or halves where they lead outside
        shares = 1 / (1 + flatness * math.exp(-log_strength))
        excess = float(shares.mean()) - tie_rate
        low, high = (low, log_strength) if excess > 0 else (log_strength, high)
        if abs(excess) < _TIE_TOLERANCE or high - low < _TIE_TOLERANCE:
            break
        step = log_strength - excess / float((shares * (1 - shares)).mean())
        log_strength = step if low < step < high else (low + high) / 2
    return math.exp(log_strength)


def _find_root(
    increasing: Callable[[float], float], low: float, high: float, precision: float = 2e-12
) -> float:
    """Return where an increasing function passes 0 between low and high, or the nearest end."""
    from scipy.optimize import brentq

    if increasing(low) >= 0:
        return low
    if increasing(high) <= 0:
        return high
    return float(brentq(increasing, low, high, xtol=precision, maxiter=500))


def draw_items(count: int, rng: Rng) -> tuple[dict[str, tuple[str, ...]], Floats]:
    """Texts of `count` distinct items, and their quality differences (count, qualities)."""
    contents = rng.choice(_MAX_ITEMS, size=count, replace=False)
    *prompt, pair = np.unravel_index(contents, _CONTENTS)  # topic, question, age, occupation, pair
    patterns = _PAIRS[:, pair]  # (2, count) bit masks over the qualities
    patterns = np.where(rng.random(count) < 0.5, patterns, patterns[::-1])
    phrasings = rng.integers(64, size=(2, count))  # bit masks over the sentences
    days = 7 * rng.integers(1, 5, size=count)

    rows = []
    choices = np.stack([*prompt, days, *patterns, *phrasings], axis=1).tolist()
    for t, q, a, o, d, pattern_a, pattern_b, phrasing_a, phrasing_b in choices:
        sentences, topic = _TOPICS[t]
        slots = {"topic": topic, "age": _AGES[a], "occupation": _OCCUPATIONS[o], "days": d}
        response_a = _compose_response(sentences, pattern_a, phrasing_a)
        response_b = _compose_response(sentences, pattern_b, phrasing_b)
        rows.append([text.format(**slots) for text in (_QUESTIONS[q], response_a, response_b)])
    columns = zip(("prompt", "response_a", "response_b"), zip(*rows, strict=True), strict=True)

    qualities = patterns[..., None] >> np.arange(len(QUALITY_WEIGHTS)) & 1
    return dict(columns), (qualities[0] - qualities[1]).astype(np.float64)


def _compose_response(sentences: tuple[tuple[str, str], ...], pattern: int, phrasing: int) -> str:
    """The core sentence, then those of the qualities in the bit mask `pattern`."""
    shown = pattern << 1 | 1
    return " ".join(pair[phrasing >> n & 1] for n, pair in enumerate(sentences) if shown >> n & 1)


def _draw_label_counts(labelers: int, labels: int, items: int, rng: Rng) -> Integers:
    """Labels per labeler (labelers,): log-normal, within [1, items], summing to `labels`."""
    propensity = rng.lognormal(sigma=_COUNT_SPREAD, size=labelers)

    def expected_counts(share: float) -> Floats:
        return np.minimum(1.0 + share * propensity, float(items))

    all_full = items / float(propensity.min())
    missing = _find_root(lambda s: float(expected_counts(s).sum()) - labels, 0.0, all_full)
    wanted = expected_counts(missing)
    counts = np.floor(wanted).astype(np.int64)
    largest_remainders = np.argsort(counts - wanted, kind="stable")
    counts[largest_remainders[: labels - int(counts.sum())]] += 1
    return counts


def _assign_items(labelers: int, labels: int, items: int, rng: Rng) -> tuple[Integers, Integers]:
    """Labeler and item of every label (labels,), grouped by labeler in order of submission."""
    counts = _draw_label_counts(labelers, labels, items, rng)
    labeler = np.repeat(np.arange(labelers, dtype=np.int64), counts)
    position = np.arange(labels) - np.repeat(np.cumsum(counts) - counts, counts)
    # A stride coprime to the number of items visits every item once before it repeats one.
    strides = np.flatnonzero(np.gcd(np.arange(items + 1), items) == 1)
    stride = strides[rng.integers(len(strides), size=labelers)]
    start = rng.integers(items, size=labelers)
    return labeler, (start[labeler] + stride[labeler] * position) % items


def _draw_submission_times(labeler: Integers, rng: Rng) -> npt.NDArray[np.datetime64]:
    """Times (labels,) on working days from 9:00 UTC; `labeler` is grouped and ascending."""
    labelers = int(labeler[-1]) + 1
    pace = rng.uniform(20.0, 90.0, size=labelers)  # mean seconds per label
    day_length = rng.uniform(2.0, 7.0, size=labelers) * 3600.0
    first_day = rng.integers(20, size=labelers)
    worked = np.cumsum(8.0 + pace[labeler] * rng.standard_exponential(labeler.size))
    before = np.concatenate([[0.0], worked])[np.searchsorted(labeler, np.arange(labelers))]
    day, second = np.divmod(worked - before[labeler], day_length[labeler])
    week, weekday = np.divmod(first_day[labeler] + day.astype(np.int64), 5)
    seconds = (7 * week + weekday) * 86_400 + 9 * 3600 + second
    return np.asarray(_FIRST_DAY + (seconds * 1e6).astype("timedelta64[us]"))


def _draw_labeler_weights(labelers: int, rng: Rng) -> Floats:
    """Weights (labelers, qualities) at scale 1: the shared ones plus each labeler's deviation."""
    shared = np.array(list(QUALITY_WEIGHTS.values()))
    return shared + _DEVIATION * rng.standard_normal((labelers, shared.size))


def _draw_gaps_for_labeler_pairs(
    contrasts: Floats, tastes: Floats, labeler: Integers, rng: Rng
) -> Floats:
    """Gaps at scale 1 where the labelers of two random labels meet at a random item: (2, n)."""
    contrast = contrasts[rng.integers(len(contrasts), size=_CALIBRATION_DRAWS)]
    meeting = labeler[rng.integers(len(labeler), size=(2, _CALIBRATION_DRAWS))]
    distinct = meeting[0] != meeting[1]
    distinct |= not distinct.any()  # a lone labeler meets themselves
    return np.asarray(np.einsum("nq,snq->sn", contrast, tastes[meeting])[:, distinct])


def _take_in_chunks(values: Sequence[str], rows: Integers) -> pa.ChunkedArray:
    dictionary = pa.array(values, pa.string())
    starts = range(0, len(rows), _TAKE_ROWS)
    return pa.chunked_array([dictionary.take(pa.array(rows[s : s + _TAKE_ROWS])) for s in starts])

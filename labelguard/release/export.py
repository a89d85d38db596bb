"""A release as rows of other trainers: files, and what they say of noise without a plug-in.

Stock trainers take no probability of a row. One that a row has is written as `copies` of its pair,
of which as many are turned around as it says: the mean of their plain loss is −p log σ(z) −
(1 − p) log σ(−z), the loss of ours, to within |z|/(2 copies). Of flips, only an unbiased `robust`
loss takes a rate. Label smoothing moves targets towards ½, where flips have moved them already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelguard.errors import LabelguardError, ProjectError
from labelguard.inputs import chats
from labelguard.learning.columns import parse_feature_columns
from labelguard.project.opening import Where
from labelguard.release.frameworks import FRAMEWORKS, NOISES, Framework, FrameworkName, Noise
from labelguard.release.head import Head
from labelguard.release.item_keys import PAIRS
from labelguard.release.pairs_file import holds_tool_calls, type_tool_calls
from labelguard.release.writer import PROBABILITIES, Release, read_card, verify_release_directory
from labelguard.storage.buckets import escape_file_names, find_rows_path, list_files
from labelguard.storage.files import check_output_directory, new_directory
from labelguard.text import (
    Progress,
    format_budget,
    no_progress,
    pluralize,
    suggest_misspelled_keywords,
)

Floats: TypeAlias = NDArray[np.float64]
# The probability that `chosen` is preferred, (n,), of rows with prompt, chosen and rejected.
Scorer: TypeAlias = Callable[[pa.Table], Floats]
_BATCH = 20_000  # rows in memory


@dataclass(frozen=True)
class ExportResult:
    """A release that was written for another trainer."""

    # the directory
    path: str
    # pairs in its file, copies counted
    rows: int
    # how labels are taken: plain, robust, soft, posterior, hard (of a probability its likelier side
    # alone), or columns of noise beside them
    noise: str
    # the rate of the robust loss; null without one
    rate: float | None
    # the command that trains on it, with names in capitals to fill in
    command: str
    # what was promised of the release, and of the teacher's
    guarantee: str
    # what else to know
    notes: tuple[str, ...]


@suggest_misspelled_keywords
def export(
    release: Release | str | Path,
    output: str | Path,
    *,
    to: FrameworkName,
    copies: int = 1,
    noise: Noise = "auto",
    teacher: Release | str | Path | None = None,
    project: Where = None,
    progress: Progress = no_progress,
) -> ExportResult:
    """Write a committed release as the rows that another trainer reads, into a new directory.

    `release` and `teacher` are ids in `project`, what `privatize` returned, or directories. Beside
    the rows are the file by which the trainer finds them, README.md with its command, and the card.
    Of rows with a probability (`label_probability`, or the head of `teacher`) each pair is written
    `copies` times, with sides swapped in proportion to it. `noise` is for flipped labels:

    - `plain`: as they are; a model learns the flips;
    - `robust`: as they are, and the one rate of all rows, where the trainer's loss is unbiased;
    - `soft`: the probability that the head of `teacher` gives the pair, whatever the label;
    - `posterior`: that of the head, joined with the label and its rate by Bayes' rule. Unbiased if
      the head is right; without one it would be label smoothing, which shrinks a second time.

    `auto` is `posterior` with a teacher, else `robust` where it can be, else `plain`.

    Post-processing: nothing is charged. Raises `LabelguardError` for what does not fit together,
    `LedgerError` or `ProjectError` for a release that is not committed, or altered, and for a
    directory that holds something.

    Example:
        >>> lg.export(release, "for-axolotl", to="axolotl", copies=10).command
        'axolotl train axolotl.yaml --base-model MODEL --output-dir OUT'
    """
    if to not in FRAMEWORKS:
        raise LabelguardError(f"to must be one of {', '.join(FRAMEWORKS)}, found {to!r}")
    target, framework = Path(output), FRAMEWORKS[to]
    check_output_directory(target, "exported")
    if target.exists() and any(target.iterdir()):
        raise ProjectError(f"{target} is not empty; choose another -o")
    directory = verify_release_directory(release, project)
    cards, scorer = {"CARD.md": directory}, None
    if teacher is not None:
        cards["TEACHER.md"] = verify_release_directory(teacher, project)
        scorer = _load_scorer(cards["TEACHER.md"], progress)
    rows = ReleaseRows.read(find_rows_path(directory), copies, framework)
    mode = _choose_noise_mode(noise, rows, framework, scorer is not None)
    rate = rows.rates[0] if mode == "robust" else None
    shown = "hard" if copies == 1 and mode in ("soft", "posterior") else mode
    command = framework.fill(framework.command, rows.is_chat, rate)
    notes = tuple(_list_export_notes(rows, shown, framework))
    guarantee = _describe_guarantee(cards)
    meaning = _MEANINGS[shown].format(rate=rate, copies=copies)
    where = "with DIR for this directory" if "DIR" in command else "in this directory"
    texts = {name: (path / "CARD.md").read_text(encoding="utf-8") for name, path in cards.items()}
    texts["README.md"] = (
        f"For {framework.title}: {guarantee}.\nLabels: {meaning}.\nTrain, {where}: `{command}`\n"
    ) + "".join(f"\n{note}\n" for note in notes)
    if framework.config:
        texts[framework.config_name] = framework.fill(framework.config, rows.is_chat, rate)
    try:
        with new_directory(target) as temporary:
            tables = _build_pair_tables(rows, framework, mode, scorer, progress)
            written = _write_tables(tables, temporary / framework.file, has_calls=rows.has_calls)
            for name, text in texts.items():
                (temporary / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProjectError(f"{target} cannot be written: {error.strerror}") from error
    return ExportResult(str(target), written, shown, rate, command, guarantee, notes)


def _load_scorer(path: Path, progress: Progress) -> Scorer:
    """Return the head of a release, as a function of texts."""
    head = Head.load(path)
    if parse_feature_columns(head.features):
        raise LabelguardError(
            f"the head in {path} reads columns ({head.features}), which a release does not have; "
            "take a teacher that reads texts"
        )
    provider = head.load_provider(progress)

    def score(batch: pa.Table) -> Floats:
        sides = {"prompt": "prompt", "first": "chosen", "second": "rejected"}
        pairs = pa.table({name: batch[column] for name, column in sides.items()})
        return head.predict_probability(provider(pairs))

    return score


@dataclass(frozen=True)
class ReleaseRows:
    """The rows of a release: how many there are, what they say of noise, how often each is written.

    `rates` are the least and the largest flip probability; `flips` rows have one, `soft` others a
    probability within (0, 1), of which `ties` have ½. `has_calls`: messages have tool calls.
    """

    path: Path
    copies: int
    rows: int
    flips: int
    soft: int
    ties: int
    rates: tuple[float, float]
    is_chat: bool
    has_calls: bool

    @classmethod
    def read(cls, path: Path, copies: int, framework: Framework) -> ReleaseRows:
        """Return them; `LabelguardError` for none, or what the framework cannot take."""
        if copies < 1:
            raise LabelguardError(f"copies must be at least 1, found {copies}")
        with duckdb.connect() as connection:
            release = connection.read_parquet(escape_file_names(path))
            types = dict(zip(release.columns, release.types, strict=True))
            content = chats.find_content_of_types(types[name] for name in PAIRS)
            has = "flip_probability IS NULL AND label_probability"
            [counts] = release.aggregate(
                f"""count(*), count(flip_probability),
                count(*) FILTER ({has} > 0 AND label_probability < 1),
                count(*) FILTER ({has} = 0.5),
                count(*) FILTER ({_unfit_rows_in_sql(framework, content)}),
                coalesce(min(flip_probability), 0), coalesce(max(flip_probability), 0)"""
            ).fetchall()
            has_calls = holds_tool_calls(release)
        rows, flips, soft, ties, unfitting, least, largest = counts
        if not rows:
            raise LabelguardError(f"{path} has no rows")
        if unfitting:
            raise LabelguardError(
                f"{framework.title} takes an answer of one assistant message, of plain text; found "
                f"{pluralize(unfitting, 'row')} with another"
            )
        return cls(path, copies, rows, flips, soft, ties, (least, largest), content.chat, has_calls)

    def read_batches(self) -> Iterator[tuple[slice, pa.Table]]:
        """Yield parts of the rows, and which these are."""
        before = 0
        files = map(pq.ParquetFile, list_files(self.path))
        for batch in chain.from_iterable(file.iter_batches(_BATCH) for file in files):
            yield slice(before, before := before + batch.num_rows), pa.Table.from_batches([batch])


def _unfit_rows_in_sql(framework: Framework, content: chats.Content) -> str:
    """Return the condition, in SQL, of rows of this content that a trainer cannot take."""
    if not (content.chat and framework.one_answer):
        return "false"
    sides = (f"len({c}) = 1 AND {c}[1].role = 'assistant'" for c in ("chosen", "rejected"))
    return "true" if content.parts else f"NOT ({' AND '.join(sides)})"


def choose_unturned_rows(
    target: Floats, row: NDArray[np.int64], copy: int, copies: int
) -> NDArray[np.bool_]:
    """Return which rows are written as they are in a copy, (n,): round(copies · target) of all.

    A half is rounded up in even rows, down in odd ones. The others are spread among the copies.
    """
    scaled = copies * target
    number = np.where(row % 2, np.ceil(scaled - 0.5), np.floor(scaled + 0.5)).astype(np.int64)
    given: NDArray[np.bool_] = (copy + row) * number % copies < number
    return given


def _choose_noise_mode(
    noise: Noise, rows: ReleaseRows, framework: Framework, has_teacher: bool
) -> str:
    """Return how labels are taken; raise `LabelguardError` for what does not fit the rows."""
    if noise not in NOISES:
        raise LabelguardError(f"noise must be one of {', '.join(NOISES)}, found {noise!r}")
    if not rows.flips:
        if has_teacher or noise not in ("auto", "plain"):
            raise LabelguardError("a teacher and --noise are for flipped labels; this has none")
        mode: str = "soft" if rows.soft else "plain"
    else:
        can = framework.robust and rows.rates[0] == rows.rates[1]
        mode = "posterior" if has_teacher else "robust" if can else "plain"
        mode = mode if noise == "auto" else noise
        if mode == "robust" and not framework.robust:
            raise LabelguardError(
                f"{framework.title} has no unbiased robust loss: its label smoothing would shrink "
                "noisy labels a second time; take --noise plain, or a --teacher"
            )
        if mode == "robust" and not can:
            least, largest = rows.rates
            raise LabelguardError(
                f"flip probabilities are from {least:.3g} to {largest:.3g}, and a robust loss "
                "takes one: train with labelguard_trainer, take --noise plain, or a --teacher"
            )
        if (mode in ("soft", "posterior")) != has_teacher:
            raise LabelguardError("--noise soft and posterior, and no other, need a --teacher")
    if framework.is_plain_file and rows.copies == 1 and noise == "auto":
        return "columns"
    if rows.copies > 1 and mode in ("plain", "robust") and not rows.soft:
        raise LabelguardError("--copies are for probabilities, and these labels have none")
    return mode


def compute_target_probabilities(batch: pa.Table, mode: str, scorer: Scorer | None) -> Floats:
    """Return the probability that `chosen` is preferred as the export takes it, (n,)."""
    target, flip = (
        batch[name].to_numpy().astype(np.float64)
        for name in ("label_probability", "flip_probability")
    )
    target[np.isnan(target)] = 1.0  # a label as it is
    flipped = ~np.isnan(flip)
    if scorer is None or not flipped.any():
        return np.where(flipped, 1.0, target)
    prior = scorer(batch)
    if mode != "soft":
        likelihood = prior * (1 - flip)
        prior = likelihood / (likelihood + (1 - prior) * flip)
    return np.where(flipped, prior, target)


_TURNED = """* REPLACE (
    CASE WHEN given THEN chosen ELSE rejected END AS chosen,
    CASE WHEN given THEN rejected ELSE chosen END AS rejected)"""


def _build_pair_tables(
    rows: ReleaseRows, framework: Framework, mode: str, scorer: Scorer | None, progress: Progress
) -> Iterator[pa.Table]:
    """Yield the pairs: one copy of all, then the next.

    Batches of a trainer that does not shuffle are as they would be without copies.
    """
    noise: tuple[str, ...] = ()
    if mode == "columns":
        noise = ("target AS label_probability",) if scorer else PROBABILITIES
    elif framework.robust and rows.flips and not scorer:
        noise = ("flip_probability",)  # for examples/noisy_losses
    as_messages, columns = framework.projections(rows.is_chat)
    target = np.empty(rows.rows)
    for part, batch in rows.read_batches():
        target[part] = compute_target_probabilities(batch, mode, scorer)
        progress("reading probabilities", part.stop / rows.rows)
    with duckdb.connect() as connection:
        for copy, part, batch in ((n, *b) for n in range(rows.copies) for b in rows.read_batches()):
            given = choose_unturned_rows(
                target[part], np.arange(part.start, part.stop), copy, rows.copies
            )
            if mode == "columns":
                given[:] = True
            batch = batch.append_column("given", pa.array(given))
            batch = batch.append_column("target", pa.array(target[part]))
            if rows.copies == 1 and mode != "columns":
                batch = batch.filter(pa.array(target[part] != 0.5))
            pairs = connection.from_arrow(batch).project(_TURNED).project(as_messages)
            table = pairs.project(", ".join([columns, *noise])).to_arrow_table()
            yield table.cast(type_tool_calls(table.schema)) if rows.has_calls else table
            progress("writing pairs", (copy + part.stop / rows.rows) / rows.copies)


def _write_json_lines(table: pa.Table) -> bytes:
    """Return rows as lines of JSON, in which tool calls are lists and not texts."""
    with duckdb.connect() as connection:
        names = ", ".join(f"'{name}': \"{name}\"" for name in table.column_names)
        lines = connection.from_arrow(table).project(f"to_json({{{names}}})::VARCHAR").fetchall()
    return "".join(f"{line}\n" for (line,) in lines).encode()


def _write_tables(tables: Iterator[pa.Table], path: Path, *, has_calls: bool) -> int:
    """Write tables of one schema to a file of Parquet or JSON lines; return the number of rows."""
    written = 0
    first = next(tables)
    with ExitStack() as stack:
        if path.suffix == ".jsonl":
            file = stack.enter_context(path.open("wb"))
        else:
            writer = pq.ParquetWriter(path, first.schema, compression="zstd")
            stack.enter_context(writer)
        for table in chain([first], tables):
            written += table.num_rows
            if path.suffix == ".jsonl":
                if has_calls:
                    file.write(_write_json_lines(table))
                else:
                    pl.DataFrame(table).write_ndjson(file)
            else:
                writer.write_table(table)
    return written


_MEANINGS: Mapping[str, str] = {
    "columns": "each row says its own noise: label_probability, flip_probability",
    "plain": "each label is taken as it is",
    "robust": "each label is taken as it is, by an unbiased loss at the rate {rate:.6g}",
    "soft": "each pair stands {copies} times, with sides swapped in proportion to its probability",
    "posterior": "each pair stands {copies} times, with sides swapped in proportion to what the "
    "head of another release, joined with the label, says",
    "hard": "each pair is written once, by its likelier side",
}


def _describe_guarantee(cards: Mapping[str, Path]) -> str:
    """Return what was promised of the releases that rows come of, by the files of their cards."""
    prices = []
    for file, path in cards.items():
        card = read_card(path)
        privacy = card["privacy"]
        price = f"{format_budget(privacy)} for each {privacy['unit']}"
        prices.append(f"{card['release']}: {price} ({file})")
    if len(prices) == 1:
        return f"release {prices[0]}"
    return (
        f"these rows come of two releases, {' and '.join(prices)}; for people who are in both "
        "their prices add, unless one policy of one project pays for both"
    )


def _list_export_notes(rows: ReleaseRows, mode: str, framework: Framework) -> Iterator[str]:
    if mode == "columns":
        return
    if mode == "plain" and rows.flips:
        least, largest = rows.rates
        span = f"{least:.3g}" + (f" to {largest:.3g}" if largest > least else "")
        yield (
            f"labels were flipped with probability {span}, which {framework.title} is not told: it "
            "learns the flips too. Label smoothing would shrink its targets a second time. "
            "labelguard_trainer, or --teacher RELEASE --copies 10, does better"
        )
    if mode == "hard":
        yield (
            "probabilities are dropped, as each pair is written once, by its likelier side: "
            "--copies 10 keeps them to within 0.05"
        )
    elif rows.copies > 1:
        yield (
            f"an epoch is {rows.copies} of the release; do not split off an evaluation by rows, "
            "nor remove duplicates: copies of a pair would stand on both sides"
        )
    if rows.ties and rows.copies == 1:
        yield f"{pluralize(rows.ties, 'row')} of probability ½ left out; --copies 2 keeps them"

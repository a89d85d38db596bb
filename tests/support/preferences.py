"""Small tables of preferences, and projects looked at from outside: what several tests share."""

import contextlib
import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelguard.report import overview

RESPONSES = 3
# Properties of responses; some pairs have equal ones.
SCORES = (0.5, -1.25, 2.0)
WORDS = ("plain", "careful", "brief")
MODELS = ("one", "two", "three")
LANGUAGES = ("de", "en")


# A statistic release that tunes nothing.
STATISTIC: dict[str, Any] = {
    "mechanism": "statistic",
    "features": "length",
    "components": 1,
    "whitening": 0.5,
    "floor": 1e-3,
    "clip_quantile": 0.5,
    "ridge": 1.0,
}


@dataclass(frozen=True)
class Public:
    """Who was asked about what: one row per annotation, in the order of submission."""

    labeler: NDArray[np.int64]
    item: NDArray[np.int64]

    def __len__(self):
        return len(self.item)

    def __getitem__(self, rows):
        return Public(self.labeler[rows], self.item[rows])  # type: ignore[index]


def public(labelers=7, per_labeler=12, items=30, seed=0):
    """Every labeler is asked about distinct items; the rows come in a random order."""
    rng = np.random.default_rng(seed)
    labeler = np.repeat(np.arange(labelers), per_labeler)
    item = np.concatenate([rng.choice(items, per_labeler, replace=False) for _ in range(labelers)])
    return Public(labeler, item)[rng.permutation(len(item))]


def opinions(rows, seed):
    """PRIVATE: how each annotator ranks the responses (1 is best, ties occur), (rows, 3)."""
    return np.random.default_rng(seed).integers(1, RESPONSES + 1, (rows, RESPONSES))


def labels(ranks):
    """What ranks say of responses 0 and 1: 1, 0, or ½ for a tie."""
    return 0.5 - np.sign(ranks[:, 0] - ranks[:, 1]) / 2


def compared(items, **columns):
    """One pair of plain texts for each of the items, by columns; and more columns beside."""
    sides = {"prompt": "question", "response_a": "answer", "response_b": "reply"}
    return {name: [f"{word} {i}" for i in items] for name, word in sides.items()} | columns


def pairs(asked, ranks, *, labelers=True):
    """The layout (prompt, response_a, response_b, label, tie)."""
    value = labels(ranks)
    tie = value == 0.5
    columns = {
        "prompt": [f"question {i}" for i in asked.item],
        "response_a": [f"first answer to {i}" for i in asked.item],
        "response_b": [f"another answer to {i}" for i in asked.item],
        "label": pa.array(np.where(tie, 0, value).astype(np.int8), mask=tie),
        "tie": tie,
        "score_a": [SCORES[i % 3] for i in asked.item],
        "score_b": [SCORES[i % 2] for i in asked.item],
        "model_a": [MODELS[i % 3] for i in asked.item],
        "model_b": [MODELS[i % 2] for i in asked.item],
    }
    return pa.table(columns | _who(asked, labelers))


def chosen(asked, ranks, *, labelers=True):
    """The layout (prompt, chosen, rejected, tie): a preference for B swaps the columns."""
    value = labels(ranks)
    sides = [(f"first answer to {i}", f"another answer to {i}") for i in asked.item]
    sides = [s[::-1] if v == 0 else s for s, v in zip(sides, value, strict=True)]
    scores = [(SCORES[i % 3], SCORES[i % 2]) for i in asked.item]
    scores = [s[::-1] if v == 0 else s for s, v in zip(scores, value, strict=True)]
    models = [(MODELS[i % 3], MODELS[i % 2]) for i in asked.item]
    models = [s[::-1] if v == 0 else s for s, v in zip(models, value, strict=True)]
    columns = {
        "prompt": [f"question {i}" for i in asked.item],
        "chosen": [side[0] for side in sides],
        "rejected": [side[1] for side in sides],
        "tie": value == 0.5,
        "score_chosen": [score[0] for score in scores],
        "score_rejected": [score[1] for score in scores],
        "model_chosen": [model[0] for model in models],
        "model_rejected": [model[1] for model in models],
    }
    return pa.table(columns | _who(asked, labelers))


def rankings(asked, ranks, *, labelers=True):
    """The layout (prompt, responses, ranks)."""
    columns = {
        "prompt": [f"question {i}" for i in asked.item],
        "responses": [[f"{word} answer to {i}" for word in WORDS] for i in asked.item],
        "ranks": ranks.tolist(),
        "score": [[SCORES[i % 3], SCORES[i % 2], 0.25] for i in asked.item],
        "model": [[MODELS[i % 3], MODELS[i % 2], MODELS[2]] for i in asked.item],
    }
    return pa.table(columns | _who(asked, labelers))


def choices(asked, ranks, *, labelers=True):
    """The layout (prompt, responses, choice): of 2 to 4 responses, two of them equal at times."""
    last = [int(i % 3 > 0) + int(i % 5 > 3) for i in asked.item]
    words = [[*WORDS[: 2 + i % 2], *["last"] * n] for i, n in zip(asked.item, last, strict=True)]
    columns = {
        "prompt": [f"question {i}" for i in asked.item],
        "responses": [
            [f"{word} answer to {i}" for word in listed]
            for listed, i in zip(words, asked.item, strict=True)
        ],
        "choice": [
            int(10 * best + worst) % len(listed)
            for listed, (best, worst, _) in zip(words, ranks, strict=True)
        ],
    }
    return pa.table(columns | _who(asked, labelers))


LAYOUTS: dict[str, Callable[..., pa.Table]] = {
    "pairs": pairs,
    "chosen": chosen,
    "rankings": rankings,
}


# With the layout that not every mechanism takes.
LISTED = LAYOUTS | {"choices": choices}


def _who(asked, labelers):
    language = {"language": [LANGUAGES[i % 5 % 2] for i in asked.item]}
    return language | ({"labeler_id": [f"worker {u}" for u in asked.labeler]} if labelers else {})


# Labels of seven labelers, who were asked about twelve items each, for tests that need any.
ASKED = public()
TABLE = pairs(ASKED, opinions(len(ASKED), 1))


def write(table, path):
    """As Parquet, as CSV, or as JSONL with chat messages in place of texts."""
    if path.suffix == ".csv":
        csv.write_csv(table, path)
        return path
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return path
    contents = {"prompt", "response_a", "response_b", "chosen", "rejected"}
    with path.open("w") as file:
        for row in table.to_pylist():
            for name in contents & set(row):
                text = row[name]
                message = {"role": "user" if name == "prompt" else "assistant", "content": text}
                # Only some answers carry a member that the others lack.
                if text and text.startswith("first") and text.endswith("7"):
                    message |= {"name": "seven"}
                row[name] = [message]
            file.write(json.dumps(row) + "\n")
    return path


def dump(state):
    """Every table of a project's SQLite ledger, in order."""
    connection = sqlite3.connect(f"file:{state / 'ledger.sqlite3'}?mode=ro", uri=True)
    with contextlib.closing(connection):
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr)
            for (name,) in sorted(names)
        }


def spent(project):
    """Places in use, of all allowances of the policy in force."""
    return sum(one.used for one in overview.read_budget(project.state).allowances)


def files(directory):
    """Every file below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def notes(release):
    """What a release says beside how noisy it is, and whose labels evaluate or train."""
    usual = ("released labels will differ", "left out: held out", "left out: not held out")
    usual += ("pays for this release alone", "says what would help")
    return [note for note in release.notes if not any(text in note for text in usual)]


# How `write_many_pairs` are released.
OF_MANY: dict[str, Any] = {"mechanism": "statistic", "features": "length+columns:judge"}
OF_MANY |= {"public_columns": ["judge"]}


def write_many_pairs(path: Path, count: int) -> str:
    """Write so many comparisons of as many short pairs, and return the path."""
    rng = np.random.default_rng(4)
    table = pa.table(
        {
            "labeler_id": rng.integers(0, 90, count).astype(str),
            "prompt": np.arange(count).astype(str),
            "response_a": ["x" * size for size in rng.integers(1, 30, count).tolist()],
            "response_b": ["y"] * count,
            "judge_a": rng.standard_normal(count),
            "judge_b": np.zeros(count),
            "label": rng.choice([0.0, 0.5, 1.0], count),
        }
    )
    pq.write_table(table, path)
    return str(path)

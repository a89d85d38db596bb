"""Runs of commands whose traces must not depend on raw labels: one list, for `worlds.differences`.

Who thinks otherwise in the second world: one labeler, or all.
"""

from itertools import pairwise

import pyarrow as pa
from support.worlds import Run, Scenario

HALF, MOST = 42, 70
ROOM = ("--uses", "2")
FEW = ("--max-labels-per-labeler", "6")
WORDS = (*ROOM, "--skips", "tie", "--label-values", "a=left,b=right")
BOUND = ("--max-labels-per-labeler", "10")
FEATURES = ("--features", "text+length", "--components", "4", "--ridge", "2")
TUNED = ("--mechanism", "statistic", "--features", "text+length")
STATISTIC = (*TUNED, *FEATURES[2:], "--whitening", "0.5", "--floor", "0.01")
STATISTIC += ("--clip-quantile", "0.5")
DECLARED = [word for name in ("score", "model", "language") for word in ("--public-column", name)]
SOURCES = (*STATISTIC[:3], "source:model,by=language+columns:score", *STATISTIC[4:], *DECLARED)
WINDOWS = (*STATISTIC, "--uses", "2")
AUTO = ("--mechanism", "auto", "--features", "text+length")
LOOK = (*AUTO, "--dry-run")
PROPS = ("--mechanism", "props", *FEATURES, "--stages", "3")
SOFT = ("--combine", "soft")
TRAINED = (*FEATURES, "--sampling-probability", "0.5", "--steps", "4", "--mechanism")
FEW_EACH = (*TRAINED[:-1], "--records", "6", "--mechanism")
UNPROVEN = (*TRAINED, "aup", "--accept-unproven", "--concentration", "3")


def blanks(table):
    """The table with blanks for ties (of rankings: where all are ties), and words for labels."""
    rows = table.to_pylist()
    for row in rows:
        if "label" in row:
            row["label"] = {1: "left", 0: " right"}.get(row["label"], " ")
            del row["tie"]
        elif len(set(row.get("ranks", (1, 2)))) == 1:
            row["ranks"] = None
    return pa.Table.from_pylist(rows)


def continue_conversations(table):
    """The table with prompts of which every other one goes on with a response to the one before."""
    rows, sides = table.to_pylist(), ("response_a", "response_b")
    first = {}
    for row in rows:
        first[row["prompt"]] = min(first.get(row["prompt"], "~"), *(row[side] for side in sides))
    asked = sorted(first)
    later = {new: f"{old}\n{first[old]}\n{new}" for old, new in pairwise(asked)}
    for row in rows:
        if asked.index(row["prompt"]) % 2:
            row["prompt"] = later[row["prompt"]]
    return pa.Table.from_pylist(rows, table.schema)


SCENARIOS = {
    "later turns": Scenario(
        (
            Run(ROOM, HALF, exits=1),
            Run((*ROOM, "--turns", "first", "-o", "{output}"), HALF),
            Run(ROOM),
        ),
        dressed=continue_conversations,
    ),
    "independent turns": Scenario(
        (Run((*ROOM, "--turns", "independent"), HALF), Run(ROOM)), dressed=continue_conversations
    ),
    "one run": Scenario((Run(("-o", "{output}")), Run(("--json",)))),
    "in parts": Scenario((Run(("--buckets", "128", "-o", "{output}")),)),
    "public ties dropped": Scenario(
        (Run(("--ties", "drop", "--tie-status-public")),), public_ties=True
    ),
    "quarantine": Scenario((Run(("--bad-rows", "quarantine"), bad=True),)),
    "stopped by a bad row": Scenario((Run(bad=True, exits=1), Run())),
    "bound": Scenario((Run((*BOUND, "--workers", "1")),)),
    "more labels later": Scenario((Run(ROOM, HALF), Run(ROOM))),
    "refused": Scenario((Run(BOUND, 14), Run(BOUND, exits=3), Run(BOUND, HALF, exits=None))),
    "exhausted labels dropped": Scenario((Run(BOUND, MOST), Run((*BOUND, "--exhausted", "drop")))),
    "again": Scenario(
        (
            Run(ROOM, HALF),
            Run((*ROOM, "--again", "--exhausted", "drop"), HALF),
            Run((*ROOM, "--again"), HALF, exits=3),
        )
    ),
    "single labels": Scenario(
        (Run(("--unit", "item", *FEW), HALF), Run(("--unit", "item", *FEW))), labelers=False
    ),
    "skips hidden among ties": Scenario(
        (Run((*WORDS, "--bad-rows", "quarantine"), HALF, bad=True), Run(WORDS)), dressed=blanks
    ),
    "chats": Scenario((Run(ROOM, HALF), Run(ROOM)), suffix=".jsonl"),
    "pulled from a tool": Scenario((Run(ROOM, HALF, ingested=True), Run(ROOM, ingested=True))),
    "statistic": Scenario((Run(STATISTIC, HALF), Run(STATISTIC, HALF), Run(STATISTIC, exits=3))),
    "statistic, tuned, as JSON": Scenario((Run(("--json", *TUNED)),)),
    "statistic of sources": Scenario((Run(SOURCES), Run(SOURCES))),
    "statistic of sources as text": Scenario((Run(SOURCES),), suffix=".csv"),
    "statistic of sources of chats": Scenario((Run(SOURCES),), suffix=".jsonl"),
    "statistic in windows": Scenario((Run(WINDOWS, HALF), Run(WINDOWS), Run(WINDOWS, HALF))),
    "statistic of single labels and public ties": Scenario(
        (Run((*STATISTIC, "--unit", "item", "--ties", "drop", "--tie-status-public")),),
        labelers=False,
        public_ties=True,
    ),
    "chosen by auto, looked at before and after": Scenario(
        (
            Run(LOOK),
            Run((*LOOK, "--json")),
            Run(AUTO),
            Run(LOOK),
            Run(("--dry-run",), HALF, exits=1),
        )
    ),
    "props": Scenario((Run(PROPS, HALF), Run(PROPS, HALF), Run((*PROPS, *SOFT), HALF))),
    "props after rr": Scenario((Run(), Run(PROPS))),
    "uls": Scenario((Run((*TRAINED, "uls", "-o", "{output}")), Run((*TRAINED, "uls", "--json")))),
    "uls refused": Scenario(
        (
            Run((*TRAINED, "uls"), HALF),
            Run((*TRAINED, "uls"), exits=3),
            Run((*TRAINED, "uls", "--exhausted", "drop"), exits=None),
        )
    ),
    "uls of single labels": Scenario((Run((*TRAINED, "uls", "--unit", "item")),), labelers=False),
    "els": Scenario((Run((*FEW_EACH, "els")), Run((*FEW_EACH, "els")))),
    "els-group": Scenario((Run((*FEW_EACH, "els-group")),)),
    "aup": Scenario((Run(UNPROVEN), Run(UNPROVEN))),
    "aup that halts": Scenario((Run((*UNPROVEN[:-1], "0.001")),)),
}
DROP = ("--exhausted", "drop")
JOINT = (
    "policy new joint --epsilon 2 --delta 9e-6 --allow rr:uses=3 --allow statistic:releases=2",
    "policy activate joint --yes",
)
HELD_OUT = (
    "policy new held --epsilon 2 --delta 9e-6 --allow statistic:releases=2 --held-out 0.5",
    "policy activate held --yes",
)
EVALUATION = ("--mechanism", "evaluation")
LATER = (
    "policy new later --epsilon 1 --delta 1e-6 --allow rr:uses=1",
    "policy activate later --yes",
)
LINKED = (
    "people link links.csv",
    "policy new linked --epsilon 3 --delta 1e-5 --allow rr:uses=1 --allow statistic:releases=1",
    "policy activate linked --yes",
)
COINS = (
    "policy new coins --epsilon 2 --delta 9e-6 --allow rr:uses=10,block=1",
    "policy activate coins --yes",
)
BESIDE = (
    "policy new beside --epsilon 2 --delta 9e-6 --allow rr:uses=1 --allow uls:runs=2,q=0.5,steps=4",
    "policy activate beside --yes",
)
LOOK_FIRST = "privatize {input} --dry-run --mechanism rr --exhausted drop"
SCENARIOS |= {
    "a joint policy": Scenario(
        (
            Run(rows=HALF, before=(*JOINT, LOOK_FIRST)),
            Run(STATISTIC, HALF),
            Run(STATISTIC, before=(" ".join(("privatize {input} --dry-run", *STATISTIC)),)),
            Run(("--exhausted", "drop"), before=(LOOK_FIRST,)),
        )
    ),
    "a change of policy": Scenario((Run(rows=HALF, before=JOINT), Run(before=LATER))),
    "evaluation": Scenario(
        (
            Run(STATISTIC, HALF, before=HELD_OUT),
            Run((*EVALUATION, "--head", "r0001"), HALF),
            Run(
                EVALUATION,
                before=("privatize {input} --dry-run --mechanism evaluation --head r0001",),
            ),
            Run((*EVALUATION, "--again"), exits=3),
        )
    ),
    "linked ids": Scenario((Run(before=LINKED), Run(STATISTIC))),
    "uls beside the rest": Scenario(
        (Run(rows=HALF, before=BESIDE), Run((*TRAINED, "uls"), HALF), Run((*TRAINED, "uls")))
    ),
    "single coins": Scenario(
        (
            Run(rows=HALF, before=COINS),
            Run(("--max-labels-per-labeler", "7")),
            Run(exits=3),
            Run(("--exhausted", "drop")),
        )
    ),
    "questions": Scenario((Run((*ROOM, "--question", "safer?"), HALF), Run((*ROOM, *DROP), HALF))),
    "somebody leaves": Scenario(
        (
            Run(ROOM, HALF),
            Run(ROOM, before=("labeler retire 'worker 1' --yes", "labeler erase 'worker 2' --yes")),
        )
    ),
    "a backup": Scenario((Run(ROOM, HALF), Run(ROOM, before=("project backup backup.tar.zst",)))),
}
ONE, ALL = [2], list(range(7))

JOB = """\
input: {input}
release: {mechanism: rr, min_new_labels: 5, options: {bad_rows: quarantine, label_values: 1-0}}
train: {options: {features: length, components: 1, holdout: 0.3}}
gate: {by: released, margin: 0.1}
notify: {url: 'https://example.org/hook', budget_below: 0.4}
"""
STATISTIC_JOB = """\
input: {input}
release:
  mechanism: statistic
  min_new_labels: 5
  options:
    {label_values: 1-0, features: length, components: 1, whitening: 0.5, floor: 0.01,
     clip_quantile: 0.5}
gate: {by: none}
promote: {keep: 1}
"""
AFTER_JOBS = (("release", "list"), ("budget", "journal", "--json"))
HELD_OUT = (JOINT[0] + " --held-out 0.4", JOINT[1])
HELD_OUT_JOB = JOB.replace("released", "held-out")
SCENARIOS |= {
    "retraining by people who are held out": Scenario(
        (
            Run(rows=HALF, job=HELD_OUT_JOB, before=HELD_OUT),
            Run(rows=MOST, job=HELD_OUT_JOB),
            Run(("--json",), job=HELD_OUT_JOB),
        ),
        afterwards=AFTER_JOBS,
    ),
    "retraining": Scenario(
        (
            Run(("--json",), HALF, job=JOB, before=JOINT, bad=True),
            Run(("--dry-run",), MOST, job=JOB),
            Run(rows=MOST, job=JOB),
            Run(rows=MOST, job=JOB),
            Run(job=JOB.replace("margin: 0.1", "at_least: 0.9")),
            Run(job=JOB.replace("length", "columns:nowhere"), exits=None),
            Run(job=JOB),
        ),
        afterwards=AFTER_JOBS,
    ),
    "retraining until nothing is left": Scenario(
        (
            Run(rows=HALF, job=STATISTIC_JOB, before=JOINT),
            Run(rows=MOST, job=STATISTIC_JOB),
            Run(("--strict", "--json"), job=STATISTIC_JOB, exits=3),
            Run(("--strict", "--dry-run"), job=STATISTIC_JOB, exits=3),
        ),
        afterwards=AFTER_JOBS,
    ),
}

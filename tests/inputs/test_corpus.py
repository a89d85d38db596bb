"""Small files in the shapes of the field are read as what they say, or refused with a way on."""

import runpy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.commands import run
from support.published import read

import labelguard as lg
from labelguard.budget.label_values import LabelValues
from labelguard.errors import InvalidLabels
from labelguard.inputs.columns import Reading
from labelguard.inputs.shapes import SHAPES
from labelguard.text import FORMAT_NAMES

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
ITEMS = (
    ("How long does an egg boil?", "Eight minutes for a firm yolk.", "Until it sings."),
    ("Name a river in Peru.", "The Ucayali.", "The Danube flows there."),
    ("Is seven a prime number?", "No, since it is odd.", "Yes, only 1 and 7 divide it."),
    ("Translate 'cat' into German.", "Hund.", "Katze."),
    ("What do bees make?", "Honey and wax.", "Milk."),
    (
        "Write a haiku about rain.",
        "Rain rain rain rain rain.",
        "Grey drops on the roof, a slow drum for sleeping cats, the gutter applauds.",
    ),
)
PREFERRED = "abbbab"
PEOPLE = ("ada", "ben", "cleo") * 2


def user(text):
    return [{"role": "user", "content": text}]


def assistant(text):
    return [{"role": "assistant", "content": text}]


def pairs(people=PEOPLE, ask=str, say=str, labels=PREFERRED):
    """The rows that most files of the corpus hold."""
    return [
        {
            "labeler_id": who,
            "prompt": ask(prompt),
            "response_a": say(one),
            "response_b": say(other),
            "label": label,
        }
        for (prompt, one, other), who, label in zip(ITEMS, people, labels, strict=True)
    ]


def of_three(people, **answers):
    """Rows with a third response, which the first person prefers."""
    return [
        {
            "labeler_id": who,
            "prompt": prompt,
            "responses": [one, other, f"I cannot say ({len(prompt)})."],
            **{name: answer[number] for name, answer in answers.items()},
        }
        for number, ((prompt, one, other), who) in enumerate(zip(ITEMS, people, strict=True))
    ]


NUMBERS = ("1", "2", "3") * 2
USERS = ("u0", "u1", "u2") * 2
BEST = (2, *("ab".index(label) for label in PREFERRED[1:]))
RATINGS = [[-4, -3, -5], *([-4 if label == "a" else -2, -3, -1] for label in PREFERRED[1:])]
PAIRS, WITHOUT_PROMPT = pairs(), pairs(ask=lambda prompt: "")
CHATS = pairs(ask=user, say=assistant)
TURNS = pairs(ask=lambda prompt: f"\n\nHuman: {prompt}\n\nAssistant:", say=lambda text: f" {text}")
RANKINGS = [
    {
        "labeler_id": row["labeler_id"],
        "prompt": row["prompt"],
        "responses": [row["response_b"], row["response_a"]],
        "ranks": [2, 1] if row["label"] == "a" else [1, 2],
    }
    for row in PAIRS
]
CHOICES = of_three(NUMBERS, choice=BEST)
NO_PROMPT = {"prompt": ""}


@dataclass(frozen=True)
class Case:
    """What a file is read with, and what it then says: rows, or words of its refusal."""

    rows: list[dict[str, Any]] | None = None
    refused: tuple[str, ...] = ()
    columns: dict[str, str] = field(default_factory=dict)
    values: str = "a-b"
    format: str = "auto"
    question: str | None = None


def of_labelers(name="labeler_id", **columns):
    return {"labeler_id": name, **columns}


def refused(*words, **options):
    return Case(refused=words, **options)


ASKED = {
    name: refused(f"column {name} may be the prompt", f"--columns prompt={name}", "--no-prompt")
    for name in (
        *("post", "text", "source", "goal", "query", "task", "input", "question", "problem"),
        *("context", "beobachtung", "messages", "history", "dialogue", "conversation"),
        "conversations",
    )
}
SCORES = {"score_a": "won_A", "score_b": "won_B"}
CASES: dict[str, list[Case]] = {
    "pairs.jsonl": [Case(PAIRS)],
    "pairs.csv": [Case(PAIRS)],
    "pairs.tsv": [Case(PAIRS)],
    "chosen.jsonl": [Case(PAIRS)],
    "chosen-chats.jsonl": [Case(CHATS)],
    "whole-chats.jsonl": [Case(CHATS)],
    "whole-texts.jsonl": [Case(TURNS)],
    "whole-texts-with-ids.jsonl": [Case(TURNS)],
    "whole-texts-with-source.jsonl": [
        refused("column source may be the prompt", "--format hh-rlhf"),
        Case(TURNS, format="hh-rlhf"),
    ],
    **{f"chosen-{name}.jsonl": [case] for name, case in ASKED.items()},
    "chosen-instruction.csv": [
        refused("column instruction may be the prompt"),
        Case(PAIRS, columns=of_labelers("rater", prompt="instruction")),
    ],
    "question-answers.jsonl": [
        refused(
            "prompt=question,response_a=answer_a,response_b=answer_b,label=preference,"
            "labeler_id=worker"
        ),
        Case(
            PAIRS,
            columns=of_labelers(
                "worker",
                prompt="question",
                response_a="answer_a",
                response_b="answer_b",
                label="preference",
            ),
        ),
    ],
    "instruction-outputs.csv": [
        refused("prompt=instruction,response_a=output_1,response_b=output_2,label=choice")
    ],
    "completions.csv": [refused("response_a=completion_a,response_b=completion_b")],
    "left-right.csv": [
        Case(
            WITHOUT_PROMPT,
            columns=of_labelers(
                "performer", response_a="left", response_b="right", label="choice", **no_prompt
            ),
            values="left-right",
        )
        for no_prompt in ({}, NO_PROMPT)
    ],
    "no-prompt.jsonl": [Case(WITHOUT_PROMPT), Case(WITHOUT_PROMPT, columns=NO_PROMPT)],
    "no-prompt-but-topic.jsonl": [
        refused("no column prompt", "prompt=topic", "--no-prompt"),
        Case(WITHOUT_PROMPT, columns=NO_PROMPT),
        Case(PAIRS, columns={"prompt": "topic"}),
    ],
    "no-prompt-chosen.jsonl": [Case(WITHOUT_PROMPT, columns=NO_PROMPT)],
    "won.jsonl": [
        refused("won_A and won_B", "--columns score_a=won_A,score_b=won_B"),
        refused("tells of one side", "score_a=won_A,score_b=won_B", columns={"label": "won_A"}),
        refused("one of score_a and score_b", columns={"score_a": "won_A"}),
        Case(PAIRS, columns=SCORES, values=""),
    ],
    "pref.csv": [
        refused("tells of one side", "score_a=pref.A", columns={"label": "pref.B"}),
        Case(PAIRS, columns={"score_a": "pref.A", "score_b": "pref.B"}, values=""),
    ],
    "votes.csv": [
        refused("score_a=votes_1,score_b=votes_2"),
        Case(PAIRS, columns={"score_a": "votes_1", "score_b": "votes_2"}, values=""),
    ],
    "scores.csv": [Case(PAIRS, values="")],
    "one-hot-winners.csv": [
        refused("score_a=winner_model_a,score_b=winner_model_b"),
        Case(PAIRS, columns={"score_a": "winner_model_a", "score_b": "winner_model_b"}, values=""),
    ],
    "won-beside-label.csv": [
        Case(PAIRS),
        refused("beside a column label", columns={"score_a": "won_a", "score_b": "won_b"}),
    ],
    "helpsteer.jsonl": [Case(CHATS, values="")],
    "helpsteer2.jsonl": [Case(PAIRS, values="")],
    "arena.jsonl": [Case(CHATS, values="")],
    "arena-texts.csv": [Case(PAIRS, values="")],
    "rankings.jsonl": [Case(RANKINGS)],
    "label-studio-pairwise.json": [Case(pairs(NUMBERS), values="")],
    "label-studio-pairwise-without-prompt.json": [
        Case(pairs(NUMBERS, ask=lambda prompt: ""), values="", columns=columns)
        for columns in ({}, NO_PROMPT)
    ],
    "label-studio-pairwise-with-note.json": [
        refused("no field is a prompt", "--columns prompt=", "--no-prompt", values=""),
        Case(pairs(NUMBERS, ask=lambda prompt: ""), values="", columns=NO_PROMPT),
        Case(pairs(NUMBERS), values="", columns={"prompt": "remark"}),
    ],
    "label-studio-choices.json": [Case(pairs(NUMBERS), values="")],
    "label-studio-best-of-three.json": [Case(CHOICES, values="")],
    "label-studio-choices.csv": [Case(CHOICES, values="", question="best")],
    "label-studio-response-selection.json": [
        refused("no two fields are responses", "responses=NAME|NAME|NAME", values=""),
        Case(
            CHOICES,
            values="",
            columns={"responses": "respone=One|resptwo=Two|respthree=Three"},
        ),
    ],
    "label-studio-dialogue.json": [
        refused("field dialogue is no prompt", "members author, text", "--no-prompt", values=""),
        refused("dialogue is no prompt", values="", columns={"prompt": "dialogue"}),
        Case([row | {"prompt": ""} for row in CHOICES], values="", columns=NO_PROMPT),
    ],
    "argilla-rest.json": [Case(pairs(USERS), values="")],
    "argilla-generations.json": [
        Case(of_three(USERS, ranks=RATINGS), values="", question="*-rating", columns=columns)
        for columns in ({}, {"responses": "generations-*"})
    ],
    "argilla-best-of-three.json": [
        Case(of_three(USERS, ranks=[[n != best for n in range(3)] for best in BEST]), values="")
    ],
}
CASES |= {
    "nested-annotations.jsonl": [
        Case(
            [
                row
                for row, other in zip(PAIRS, pairs(("dora",) * 6, labels="aaaaaa"), strict=True)
                for row in (row, other)
            ]
        )
    ],
    "nested-votes.json": [
        refused("prompt=question,response_a=answer_1,response_b=answer_2"),
        Case(
            PAIRS,
            columns={"prompt": "question", "response_a": "answer_1", "response_b": "answer_2"},
        ),
    ],
    "mturk.csv": [Case(PAIRS)],
    "mturk-radio.csv": [
        refused("no column label", "score_a=Answer.best.a,score_b=Answer.best.b"),
        Case(PAIRS, columns={"score_a": "Answer.best.a", "score_b": "Answer.best.b"}, values=""),
    ],
    "toloka.tsv": [Case(PAIRS)],
    "toloka-pictures.tsv": [Case(WITHOUT_PROMPT, values="left-right")],
    "argilla-1-records.json": [Case(pairs(USERS), values="")],
    "argilla-1-dataset.jsonl": [
        refused("prompt=instruction,response_a=response-1,response_b=response-2"),
        Case(
            pairs(USERS),
            columns={
                "prompt": "instruction",
                "response_a": "response-1",
                "response_b": "response-2",
            },
        ),
    ],
    "prodigy.jsonl": [
        Case(
            [
                {
                    "labeler_id": f"eggs-{row['labeler_id']}",
                    "prompt": row["prompt"],
                    "responses": [row["response_a"], row["response_b"]],
                    "choice": "ab".index(row["label"]),
                }
                for row in PAIRS
            ],
            values="",
        )
    ],
    "arena-one-conversation.jsonl": [refused("nearly arena, without conversation_b")],
    "helpsteer-without-preference.csv": [
        refused("reads labels from column overall_preference", columns=of_labelers("annotator"))
    ],
    "thumbs.jsonl": [refused("one response a row", "formats.md#thumbs-up-or-down")],
    "prodigy-sessions.jsonl": [
        refused("_session_id names sessions by the time", "--labeler-column NAME", values="")
    ],
}
ALL = [(name, number) for name, cases in CASES.items() for number in range(len(cases))]


@pytest.mark.parametrize(("name", "number"), ALL)
def test_a_file_is_read_as_what_it_says_or_refused_with_a_way_on(name, number, keys, places):
    case = CASES[name][number]
    reading = Reading(
        case.columns,
        values=LabelValues.parse(case.values),
        format=case.format,
        question=case.question,
    )
    outcome = read(str(CORPUS / name), next(places), keys, reading)
    if case.rows is None:
        assert outcome.message
        assert [words for words in case.refused if words not in outcome.message] == [], (
            outcome.message
        )
        return
    assert not outcome.message
    values = LabelValues.parse("" if "responses" in case.rows[0] else "a-b")
    expected = Reading({}, values=values, question=case.question)
    assert outcome.labels == read(case.rows, next(places), keys, expected).labels


@pytest.mark.parametrize("name", ["nested-annotations.jsonl", "prodigy.jsonl", "won.jsonl"])
def test_other_answers_change_nothing_but_labels(name, keys, places, tmp_path):
    text = (CORPUS / name).read_text()
    swaps = (('"choice": "a"', '"choice": "b"'), ('["x"]', '["y"]'), ("true", "false"))
    for one, other in swaps:
        text = text.replace(one, "\0").replace(other, one).replace("\0", other)
    (tmp_path / name).write_text(text)
    case = CASES[name][-1]
    reading = Reading(case.columns, values=LabelValues.parse(case.values))
    outcomes = [
        read(str(directory / name), next(places), keys, reading) for directory in (CORPUS, tmp_path)
    ]
    assert outcomes[0].public == outcomes[1].public
    assert outcomes[0].labels == {key: 1 - label for key, label in outcomes[1].labels.items()}


def test_every_file_of_the_corpus_has_an_expectation():
    assert sorted(path.name for path in CORPUS.iterdir()) == sorted(CASES)


@pytest.mark.quick("pairs.csv-0", "won.jsonl-0", "left-right.csv-1", "prodigy-sessions.jsonl-0")
@pytest.mark.parametrize(("name", "number"), ALL)
def test_commands_and_python_accept_and_refuse_the_same(name, number, tmp_path):
    """`plan` needs no labels: it may accept what the others refuse for them."""
    case, path = CASES[name][number], str(CORPUS / name)
    columns = ",".join(f"{role}={column}" for role, column in case.columns.items())
    words = [*(["--columns", columns] if columns else []), "--format", case.format]
    words += ["--question", case.question] if case.question else []
    values = ["--label-values", case.values] if case.values else []
    project = lg.init(tmp_path / "study")
    inspected = run("inspect", path, *words, code=None)
    planned = run("plan", path, *words, "--features", "length", code=None)
    dry = run(
        *("privatize", path, *words, *values, "--mechanism", "rr", "--epsilon", "3", "--once"),
        *("--dry-run",),
        code=None,
        project=project,
    )
    options = {"columns": case.columns, "label_values": case.values or None}
    try:
        lg.privatize(
            path,
            mechanism="rr",
            epsilon=3,
            once=True,
            accept_little_use=True,
            format=case.format,
            question=case.question,
            project=project,
            **options,
        )
        message = ""
    except InvalidLabels as error:
        message = str(error)
    refusing = case.rows is None
    assert (bool(message), dry.exit_code != 0) == (refusing, refusing)
    problems = inspected.exit_code != 0 or "A release would be refused" in inspected.output
    assert problems == refusing, inspected.output
    assert planned.exit_code == 0 or refusing, planned.output


def test_the_page_of_formats_has_the_table_of_shapes():
    script = runpy.run_path(str(ROOT / "docs" / "generate_formats.py"))
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    assert page == script["render_page"](), "run: python docs/generate_formats.py"
    assert set(SHAPES) == set(FORMAT_NAMES)

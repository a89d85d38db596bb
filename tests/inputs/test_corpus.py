"""Small files in the shapes of the field are read as what they say, or refused with a way on."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.published import read

from labelguard.budget.label_values import LabelValues
from labelguard.inputs.columns import Reading

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
        Case(PAIRS, columns=SCORES),
    ],
    "pref.csv": [
        refused("tells of one side", "score_a=pref.A", columns={"label": "pref.B"}),
        Case(PAIRS, columns={"score_a": "pref.A", "score_b": "pref.B"}),
    ],
    "votes.csv": [
        refused("score_a=votes_1,score_b=votes_2"),
        Case(PAIRS, columns={"score_a": "votes_1", "score_b": "votes_2"}),
    ],
    "scores.csv": [Case(PAIRS)],
    "one-hot-winners.csv": [
        refused("score_a=winner_model_a,score_b=winner_model_b"),
        Case(PAIRS, columns={"score_a": "winner_model_a", "score_b": "winner_model_b"}),
    ],
    "won-beside-label.csv": [
        Case(PAIRS),
        refused("beside a column label", columns={"score_a": "won_a", "score_b": "won_b"}),
    ],
    "helpsteer.jsonl": [Case(CHATS)],
    "helpsteer2.jsonl": [Case(PAIRS)],
    "arena.jsonl": [Case(CHATS)],
    "arena-texts.csv": [Case(PAIRS)],
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


def test_every_file_of_the_corpus_has_an_expectation():
    assert sorted(path.name for path in CORPUS.iterdir()) == sorted(CASES)

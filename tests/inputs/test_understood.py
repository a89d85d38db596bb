"""What was understood of an input is said before anything is charged, and no part of a prompt is
left out without a word.
"""

import re
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.commands import FIRST, run
from support.releases import make_release

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.release.privatize import plan as preview
from labelguard.report import overview

HEADER = "labeler_id,instruction,input,response_a,response_b,label,notes\n"
ROWS = "u1,do it,with this,x,yes,A,\nu2,do that,,z,w,B,hm\n"


@pytest.fixture
def project(tmp_path):
    return lg.init(tmp_path / "project")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(HEADER + ROWS)
    return path


def refusals(file, project, **options):
    """What each way to read an input says where it refuses; empty where it does not."""
    release = options | {"project": project, "mechanism": "rr"}
    ways = {
        "inspect": lambda: "".join(lg.inspect(file, **options).problems),
        "plan": lambda: lg.plan(file, features="length", epsilons=1, **options) and "",
        "preview": lambda: preview(file, once=True, **release) and "",
        "release": lambda: make_release(file, **release) and "",
    }
    said = {}
    for name, read in ways.items():
        try:
            said[name] = read()
        except InvalidLabels as error:
            said[name] = str(error)
    return said


def test_an_unread_part_of_the_prompt_stops_a_first_release(file, project):
    columns = {"prompt": "instruction"}
    [said] = {*refusals(file, project, columns=columns).values()}
    assert "column input may be part of what was asked" in said
    assert "prompt=input+instruction" in said and "--ignore-columns input" in said
    assert not overview.list_releases(project)
    assert not any(refusals(file, project, columns=columns, ignore_columns=["input"]).values())
    # A release that comes later is read as the first was.
    file.write_text(HEADER + ROWS.replace("do", "go on"))
    again = make_release(file, project=project, mechanism="rr", exhausted="drop")
    assert again.card["reading"]["prompt"] == "instruction"


@pytest.mark.parametrize(
    ("ignored", "said"),
    [("inputs", "no column 'inputs' to ignore"), ("response_a", "is read, so that it cannot")],
)
def test_nothing_but_an_unread_column_is_ignored(file, project, ignored, said):
    options = {"columns": {"prompt": "instruction+input"}, "ignore_columns": [ignored]}
    assert all(said in one for one in refusals(file, project, **options).values())


def test_columns_of_text_are_joined_to_a_prompt(file, project):
    made = make_release(
        file, project=project, mechanism="rr", columns={"prompt": "instruction+input"}
    )
    prompts = pq.read_table(made.path / "data.parquet")["prompt"].to_pylist()
    assert sorted(prompts) == ["do it\n\nwith this", "do that"]


@pytest.mark.parametrize(
    ("named", "said"),
    [("instruction+inputs", "no column 'inputs'"), ("instruction+n", "column n is no text")],
)
def test_only_columns_of_text_that_are_there_are_joined(named, said):
    rows = {"instruction": "x", "n": 1, "chosen": "a", "rejected": "b", "labeler_id": "u"}
    with pytest.raises(InvalidLabels, match=said):
        lg.inspect(pa.Table.from_pylist([rows]), columns={"prompt": named})


def test_the_reading_is_said_before_anything_is_charged(file, project, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    words = (
        "privatize",
        file,
        *FIRST,
        "--mechanism",
        "rr",
        "--columns",
        "prompt=instruction+input",
    )
    for more in (("--dry-run",), ()):
        said = run(*words, *more, project=project).output
        columns = "prompt = instruction+input, response_a, response_b, label, labeler_id"
        assert columns in " ".join(said.split())
        assert "model_a: response_a is preferred; " in " ".join(said.split())
        assert re.search("not used +notes\n", said) and "do it with this | x | yes" in said


def test_a_mapping_from_columns_to_roles_is_recognised():
    row = {"task": "p", "chosen": "a", "rejected": "b", "labeler_id": "u"}
    with pytest.raises(InvalidLabels, match=r"turn it round, {'prompt': 'task'}"):
        lg.inspect([row], columns={"task": "prompt"})


@pytest.mark.parametrize(
    "part",
    ["label", "Label", "labeler_id", "response_a", "winner", "score_a", "text_chosen", "mark"],
)
def test_no_answer_and_no_other_role_becomes_a_part_of_the_prompt(project, part):
    """A prompt is published as it is: what is joined to it must tell no label and no labeler."""
    given = {"labeler_id": "u", "response_a": "x", "response_b": "yes", "mark": "A"}
    table = pa.Table.from_pylist(
        [{"task": "do it"} | given | ({} if part in given else {part: "A"})]
    )
    columns = {"prompt": f"task+{part}", "label": "mark"}
    with pytest.raises(InvalidLabels, match=f"column {part} .*cannot be a part of the prompt"):
        make_release(table, project=project, mechanism="rr", columns=columns)
    assert not overview.list_releases(project)


def test_one_reading_goes_for_several_calls(tmp_path):
    rows = [
        {"question": "2 + 2?", "response_a": "four", "response_b": "5", "label": 1, "worker": w}
        for w in range(3)
    ]
    read = lg.Reading(columns={"prompt": "question", "labeler_id": "worker"}, label_values="1-0")
    assert lg.inspect(rows, reading=read).problems == ()
    assert "3 labelers" in repr(lg.plan(rows, reading=read, epsilons=3, features="length"))
    lg.init(tmp_path)
    made = lg.privatize(
        rows,
        reading=read,
        mechanism="rr",
        epsilon=3,
        delta=1e-5,
        once=True,
        accept_little_use=True,
        project=tmp_path,
    )
    assert len(lg.load(made)) == len(rows)
    with pytest.raises(InvalidLabels, match="no column 'rater'"):
        lg.inspect(rows, reading=read, labeler_column=None, columns={"labeler_id": "rater"})


def test_rows_that_nobody_answered_are_counted_and_a_list_of_answers_is_read():
    rows = [
        {
            "prompt": f"What of {n}?",
            "response_a": f"yes {n}",
            "response_b": "no",
            "votes": [{"worker": f"w{k}", "choice": "a"} for k in range(n % 3)],
        }
        for n in range(12)
    ]
    seen = lg.inspect(pa.Table.from_pylist(rows))
    assert seen.left_out == {"row without answers": 4} and seen.rows == 12
    assert "votes" not in str(seen).partition("not used")[2].partition("\n")[0]
    assert not lg.inspect(pa.Table.from_pylist([r for r in rows if r["votes"]])).left_out


def test_a_reading_of_another_kind_is_refused_with_what_is_expected(project):
    rows = [{"prompt": "2 + 2?", "response_a": "4", "response_b": "5", "label": "a"}]
    for call in (lg.inspect, lg.plan, partial(lg.privatize, project=project)):
        with pytest.raises(InvalidLabels, match=r"reading expects lg\.Reading\(.*found dict"):
            call(rows, reading={"format": "pairs"})

"""`docs/verify.py`: what a card claims, recomputed without labelguard."""

import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.held_out import EVALUATION, SHAPE, TEACHER, hold_out
from support.lives import put_into_force
from support.pages import script
from support.preferences import choices, opinions, pairs, public
from support.releases import make_release
from support.surveys import survey

import labelguard as lg
from labelguard.budget import events, pricing
from labelguard.budget.policy import Allowance, Policy

SCRIPT = Path(__file__).parents[2] / "docs" / "verify.py"
PROGRAM = compile(SCRIPT.read_text(encoding="utf-8"), str(SCRIPT), "exec")
HOLDS, WRONG, NO_CARD, UNCHECKED = range(4)

ASKED = public()
LABELS = pairs(ASKED, opinions(len(ASKED), 1))
CHOICES = choices(ASKED, opinions(len(ASKED), 1))
PRICE: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "mechanism": "rr"}
RULED: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5}


def verify(card, directory, *, alone=False):
    """The exit code of the program, and what it prints; `alone`: in a Python of its own."""
    path = directory / "doctored.json"
    path.write_text(card if isinstance(card, str) else json.dumps(card), encoding="utf-8")
    if alone:
        command = [sys.executable, "-I", str(SCRIPT), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not done.stderr
        return done.returncode, done.stdout
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [str(SCRIPT), str(path)])
        try:
            exec(PROGRAM, {"__name__": "__main__"})
        except SystemExit as ended:
            return ended.code, printed.getvalue()
    return 0, printed.getvalue()


def first(raw, **options):
    """A project's first release, whose policy is made by its options."""
    return lambda project: make_release(raw, project=project, **options)


def under(*allow, raw=LABELS, then=(), **options):
    """A release under a policy with these allowances, or under it and one that followed."""

    def make(project):
        for name, allowed in (("first", allow), ("second", then)):
            if allowed:
                policy = {"public_columns": SHAPE["public_columns"]} if then else {}
                put_into_force(project, name, *allowed, **policy)
                made = make_release(raw, project=project, again=name == "second", **options)
        return made

    return make


def evaluation(project):
    raw = survey(labelers=60)
    hold_out(project, "statistic:releases=3")
    head = make_release(raw, project=project, **TEACHER)
    return make_release(raw, head=head.path, project=project, **EVALUATION)


STATISTIC: dict[str, Any] = {"mechanism": "statistic", "features": "length"}
RELEASES = {
    "rr": first(LABELS, **PRICE),
    "rr at δ = 0": first(LABELS, **PRICE | {"delta": 0.0, "uses": 3}),
    "rr for a year": first(LABELS, **PRICE, recurring="weekly", duration="1y"),
    "rr of items": first(LABELS, **PRICE, unit="item"),
    "rr of choices": first(CHOICES, **PRICE),
    "rr, label by label": under("rr:uses=50,block=1", mechanism="rr"),
    "props": first(LABELS, **PRICE | {"mechanism": "props", "features": "length"}),
    "Gaussian": first(LABELS, **RULED, **STATISTIC, uses=4),
    "ball": under("statistic:releases=1,ball=1", **STATISTIC),
    "ball of three": under("statistic:releases=1,ball=3", **STATISTIC | {"features": "style"}),
    "evaluation": evaluation,
    "rr beside Gaussian": under("rr:uses=12", "statistic:releases=12", **STATISTIC),
    "rr beside ball": under("rr:uses=4", "statistic:releases=1,ball=2", mechanism="rr"),
    "two policies": under("rr:uses=2", then=("rr:uses=3", "statistic:releases=2"), mechanism="rr"),
}


@pytest.fixture(scope="module")
def cards(tmp_path_factory):
    """The card of each, as it was published; made when it is asked for first."""
    made: dict[str, str] = {}

    def card(name):
        if name not in made:
            project = lg.init(tmp_path_factory.mktemp("verified"), max_epsilon=1e6)
            made[name] = (RELEASES[name](project).path / "card.json").read_text(encoding="utf-8")
        return json.loads(made[name])

    return card


@pytest.mark.quick(
    "ball of three",
    "evaluation",
    "rr for a year",
    "Gaussian",
    "rr of items",
)
@pytest.mark.parametrize("name", RELEASES)
def test_the_price_of_a_release_follows_from_its_card(name, cards, tmp_path):
    card = cards(name)
    code, said = verify(card, tmp_path, alone=True)
    assert code == HOLDS, said
    claimed, recomputed = (
        card["privacy"]["epsilon"],
        float(re.findall(r"recomputed ε = (\S+)", said)[-1]),
    )
    assert 0.98 * claimed <= recomputed <= claimed * (1 + 1e-9)
    assert f"claimed ε = {claimed}" in said and said.endswith("HOLDS\n")


@pytest.mark.quick("Gaussian")
@pytest.mark.parametrize("name", RELEASES)
def test_a_smaller_epsilon_is_refused(name, cards, tmp_path):
    card = cards(name)
    card["privacy"]["epsilon"] *= 0.97
    assert verify(card, tmp_path)[0] == WRONG
    for policy in card["privacy"]["policies"]:
        policy["epsilon"] *= 0.97
    assert verify(card, tmp_path)[0] == WRONG


def change(*path, to=None, by=None):
    """What sets a member of a card, or multiplies it."""

    def doctor(card):
        *parents, name = path
        for key in parents:
            card = card[key]
        card[name] = to if by is None else type(card[name])(float(card[name]) * by)

    return doctor


def _forget(card, event):
    """Leave an allowance out, and claim what the others cost alone."""
    policy = card["privacy"]["policies"][0]
    del policy["allowances"][event]
    policy["epsilon"] = card["privacy"]["epsilon"] = 2.9


def _halve_the_sum(card):
    for name in ("sensitivity", "noise"):
        card["statistic"][name] /= 2


POLICY = ("privacy", "policies", 0)
RR, SUM = (*POLICY, "allowances", "rr"), (*POLICY, "allowances", "statistic")
FIRST_BLOCK = ("flip_probability", "blocks", 0, "flip_probability")
DOCTORED = {
    "less δ": ("rr", change("privacy", "delta", by=0.5)),
    "a price of fewer flips": ("rr", change(*RR, "threshold", to=str(2**62))),
    "fewer flips than are paid for": ("rr", change(*FIRST_BLOCK, by=0.9)),
    "fewer flips at least": ("rr", change("flip_probability", "min", by=0.9)),
    "blocks of other sizes": ("rr", change("flip_probability", "blocks", 0, "labels", to=3)),
    "more uses than are paid for": ("rr for a year", change(*RR, "allowed", to=51)),
    "no use": ("rr", change(*RR, "allowed", to=0)),
    "less than no use": ("rr", change(*RR, "allowed", to=-1)),
    "a greater flip at the median": ("rr", change("flip_probability", "median", to=0.499)),
    "a greater flip at most": ("rr", change("flip_probability", "max", to=0.499)),
    "a block left out": ("rr of choices", lambda card: card["flip_probability"]["blocks"].pop()),
    "another unit": ("rr", change("privacy", "unit", to="item")),
    "a ceiling that was passed": ("rr", change("privacy", "ceiling", "epsilon", to=1)),
    "an allowance left out": ("rr beside ball", lambda card: _forget(card, "statistic")),
    "more used than allowed": ("rr", change("budget", "used", "max", to=99)),
    "another adjacency": ("rr", change("privacy", "adjacency", to="zero_out")),
    "more releases": ("Gaussian", change(*SUM, "allowed", to=5)),
    "a price of less noise": ("Gaussian", change(*SUM, "noise_multiplier", by=0.99)),
    "less noise than is paid for": ("Gaussian", change("statistic", "noise_scale", by=0.99)),
    "less noise": ("Gaussian", change("statistic", "noise", by=0.99)),
    "a larger sensitivity": ("Gaussian", change("statistic", "sensitivity", by=1.01)),
    "another noise": ("Gaussian", change("statistic", "noise_kind", to="ball")),
    "a smaller ball": ("ball of three", change(*SUM, "scale", by=0.99)),
    "a ball of less": ("ball of three", change("statistic", "noise_least_components", to=2)),
    "a ball in fewer components": ("ball of three", change(*SUM, "components", to="2")),
    "a ball in no components": ("ball", change(*SUM, "components", to="-4")),
    "balls": ("ball", change(*SUM, "allowed", to=2)),
    "noise at δ = 0": ("Gaussian", change(*POLICY, "delta", to=0)),
    "less of both": ("rr beside Gaussian", change(*SUM, "noise_multiplier", by=0.99)),
    "another mechanism": ("rr", change("mechanism", to="statistic")),
    "less of the first": ("two policies", change(*RR, "allowed", to=4)),
    "less newly charged": ("two policies", change("privacy", "newly_charged", "epsilon", by=0.9)),
    "less δ newly charged": ("two policies", change("privacy", "newly_charged", "delta", by=0.01)),
    "half the sensitivity and noise": ("Gaussian", _halve_the_sum),
    "another second moment": ("rr", change(*FIRST_BLOCK[:-1], "second_moment", by=1.5)),
    "two units for less than one": ("rr", change("privacy", "two_units", "epsilon", to=2.5)),
    "not a number": ("rr", change("privacy", "epsilon", to=float("nan"))),
}


@pytest.mark.parametrize("name", DOCTORED)
def test_a_card_that_says_less_than_was_done_is_refused(name, cards, tmp_path):
    release, doctor = DOCTORED[name]
    card = cards(release)
    doctor(card)
    code, said = verify(card, tmp_path)
    assert code in (WRONG, NO_CARD), said
    assert "HOLDS\n" not in said


UNKNOWN = {
    "a gradient method": change("mechanism", to="uls"),
    "a policy that pays for one": change(*POLICY, "allowances", "uls", to={"allowed": 1}),
    "a card from before": change("privacy", "policies", to=None),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_checked_has_a_code_of_its_own(name, cards, tmp_path):
    card = cards("rr")
    UNKNOWN[name](card)
    code, said = verify(card, tmp_path)
    assert code == UNCHECKED and said.startswith("CANNOT BE CHECKED")


@pytest.mark.parametrize("card", ["", "{}", "[]", "[" * 10**5, '{"privacy": 1, "mechanism": []}'])
def test_what_is_no_card_is_said_to_be_none(card, tmp_path):
    code, said = verify(card, tmp_path)
    assert code == NO_CARD and said.startswith("NO READABLE CARD")


POLICIES = [
    (3, 1e-5, ["rr:uses=52"]),
    (1, 0.0, ["rr:uses=7"]),
    (1, 1e-6, ["rr:uses=500,block=1"]),
    (8, 1e-5, ["statistic:releases=12"]),
    (0.1, 1e-7, ["statistic:releases=1"]),
    (3, 1e-5, ["statistic:releases=1,ball=2"]),
    pytest.param(1, 1e-5, ["statistic:releases=1,ball=64"], marks=pytest.mark.slow),
    pytest.param(3, 1e-5, ["statistic:releases=1,ball=60000"], marks=pytest.mark.slow),
    (12, 1e-4, ["rr:uses=30,block=1", "statistic:releases=52"]),
    (2, 1e-6, ["rr:uses=3", "statistic:releases=1,ball=5"]),
]


@pytest.mark.quick("3-1e-05-allow5", "0.1-1e-07-allow4", "8-1e-05-allow3")
@pytest.mark.parametrize(("epsilon", "delta", "allow"), POLICIES)
def test_it_computes_what_the_accountants_do(epsilon, delta, allow):
    terms = [events.parse_allowance(text) for text in allow]
    ties = "coin" if terms[0][0] == "rr" else "zero"
    allowances = tuple(Allowance(event, count, **more) for event, count, more in terms)
    policy = Policy(epsilon, delta, allowances, ties=ties)  # type: ignore[arg-type]
    quoted, prices = pricing.compute_quote(policy)
    allowed = {
        event: {"allowed": count, **pricing.format_price(price)}
        for event, by_count in prices.items()
        for count, price in by_count.items()
    }
    said = {"epsilon": epsilon, "delta": delta, "allowances": allowed}
    value = float(script(SCRIPT).epsilon_of(said))
    assert value == pytest.approx(quoted["epsilon"], rel=1e-8)


def test_an_auditor_reads_the_command_and_what_it_prints(cards, tmp_path):
    page = (SCRIPT.parent / "privacy-officer.md").read_text(encoding="utf-8")
    shown = page.partition("python docs/verify.py release/card.json\n```\n\n```text\n")[2]
    _, said = verify(cards("rr, label by label"), tmp_path)
    for line, expected in zip(said.splitlines(), shown.splitlines()[:5], strict=True):
        assert line.startswith(expected.partition(" against earlier releases")[0])
    assert said.splitlines()[-1] == "HOLDS"


@pytest.mark.parametrize("arguments", [[], ["."], ["a.json", "b.json"]])
def test_who_names_no_card_is_told_how_to(arguments):
    command = [sys.executable, "-I", str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (NO_CARD, "usage: python docs/verify.py CARD.json\n")


def test_the_program_is_short_and_imports_nothing_of_labelguard():
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 210
    imports = {line.split()[1] for line in lines if line.startswith(("import", "from"))}
    assert imports == {"json", "re", "sys", "pathlib", "mpmath"}


@pytest.mark.slow
def test_a_run_of_a_gradient_method_cannot_be_checked(project, tmp_path):
    run: dict[str, Any] = {"sampling_probability": 0.25, "steps": 5, "public_columns": ["score"]}
    columns = {"features": "columns:score", "mechanism": "uls"}
    made = make_release(survey(labelers=30), project=project, **RULED, **run, **columns)
    code, said = verify((made.path / "card.json").read_text(encoding="utf-8"), tmp_path)
    assert code == UNCHECKED, said


@pytest.mark.parametrize("chats", [False, True])
def test_prompts_that_tell_labels_are_found_in_the_data_files(chats, tmp_path):
    def write_turns(*texts):
        roles = ("user", "assistant") * 2
        chat = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
        return chat if chats else "\n".join(texts)

    def row(n, prompt):
        sides = {"response_a": f"yes {n}", "response_b": f"no {n}"}
        if chats:
            sides = {k: [{"role": "assistant", "content": v}] for k, v in sides.items()}
        return {"labeler_id": "ann", "prompt": prompt, **sides, "label": n % 2}

    rows = [row(n, write_turns(f"is {n} odd?")) for n in range(4)]
    rows += [row(n + 10, write_turns(f"is {n} odd?", f"yes {n}", "why?")) for n in range(3)]
    made = make_release(
        rows, project=lg.init(tmp_path), turns="independent", accept_delta=True, **PRICE
    )
    out = tmp_path / "copy"
    shutil.copytree(made.path, out)
    assert verify(made.card, out)[0] == HOLDS
    code, said_of_it = verify(json.loads(json.dumps(made.card).replace("independent", "stop")), out)
    assert code == WRONG
    assert "3 prompts" in said_of_it

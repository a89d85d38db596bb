"""The documents say what is so: the reference is current, examples run, links lead somewhere."""

import contextlib
import functools
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support import commands
from support.codings import OPTION
from support.commands import FIRST
from support.hooks import serving
from support.pages import DOCS, ROOT, blocks, script
from support.terms import unexplained
from support.tools import connected, deliver

from labelguard.cli.main import main
from labelguard.ledger.ledger import Ledger
from labelguard.project.opening import OpenProject
from labelguard.project.project import find

REFERENCE = ROOT / "docs" / "generate_cli.py"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SIMULATE = "simulate -o labels.parquet --labelers 20 --labels 400 --items 100"
FIRST_RELEASE = (
    f"privatize labels.parquet {' '.join(OPTION)} --epsilon 3 --delta 1e-5 {' '.join(FIRST)}"
)
PRIVATIZE = f"{FIRST_RELEASE} --mechanism rr"
HEAD = "--mechanism props --features length"
OF_TOOLS = ("connect", "hook", "ingest", "pull", "serve")
OF_MODELS = ("align", "train")
# Commands whose examples begin in an empty directory.
FROM_NOTHING = ("init", "simulate", "demo")
STAGES = {"privatize": "new"}
STAGES |= dict.fromkeys(("align", "score"), "head")


reference = script(REFERENCE)
LEAVES = [
    pytest.param(
        path,
        command,
        id="-".join(path),
        marks=[pytest.mark.xdist_group("trl")] * (path[0] in OF_MODELS),
    )
    for path, command in reference.commands()
    if not isinstance(command, click.Group)
]


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    for name in ("LABELGUARD_PROJECT", "LABELGUARD_KEYS", "LABELGUARD_LEDGER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


def run(line):
    """Run `labelguard …`, which must succeed; what it prints."""
    program, *arguments = shlex.split(line)
    assert program == "labelguard", line
    result = CliRunner().invoke(main, arguments, input="y\n")
    assert result.exit_code == 0, f"{line}\n{result.output}"
    return result.stdout


def examples(command):
    """The lines below `Example:` in a command's help."""
    text = re.sub(r"\\\n *", "", command.help or "")  # lines that go on
    return re.findall(r"(?m)^ *(labelguard .*)$", text.partition("Example:")[2])


def test_the_command_line_reference_is_up_to_date():
    current = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert current == reference.page(), "run: python docs/generate_cli.py"
    sections = re.findall(r"(?m)^## (\w+)$", reference.json_page())
    assert len(sections) == len(set(sections)) > 30


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """Directories with labels and a project: new, after a release, and after one with a head."""
    found: dict[str, Path] = {"nothing": tmp_path_factory.mktemp("nothing")}
    with pytest.MonkeyPatch.context() as patch:
        for name, before, lines in (
            ("new", "nothing", (SIMULATE, "init")),
            ("released", "new", (PRIVATIZE,)),
            ("head", "new", (f"{FIRST_RELEASE} {HEAD}",)),
        ):
            found[name] = here = tmp_path_factory.mktemp(name)
            _begin(found[before], here, patch)
            for line in lines:
                run(f"labelguard {line}")
    return found


def _begin(stage, here, patch):
    """Go on in `here` from a stage, whose projects are known as the user's own."""
    shutil.copytree(stage, here, dirs_exist_ok=True)
    listed = here / "state" / "labelguard" / "projects"
    if listed.exists():  # a copy would be refused
        listed.write_text(listed.read_text().replace(str(stage), str(here)))
    patch.chdir(here)
    patch.setenv("XDG_STATE_HOME", str(here / "state"))


def test_every_command_has_examples_of_its_own():
    for path, command in reference.commands():
        if not isinstance(command, click.Group):
            lines = examples(command)
            assert lines and all(line.startswith(f"labelguard {' '.join(path)}") for line in lines)


@pytest.mark.docs
@pytest.mark.parametrize("option", ["", " --json"], ids=["text", "json"])
@pytest.mark.parametrize(("path", "command"), LEAVES)
def test_the_examples_of_every_command_run_and_their_json_is_as_documented(
    path, command, option, stages, hub, tmp_path, monkeypatch
):
    if path[0] not in FROM_NOTHING:
        stage = STAGES.get(path[0], "released")
        _begin(stages[stage], tmp_path, monkeypatch)
    if path[0] in OF_TOOLS:
        _tool(tmp_path, monkeypatch)
    PREPARED.get(path, lambda: None)()
    for line in examples(command):
        if path[-1] == "serve":
            _serve(line)
            continue
        printed = run(line + option)
        if option:
            _check_json(json.loads(printed), reference.results()[" ".join(path)])
        else:
            assert unexplained(printed) == []


def _check_json(printed, described):
    """What was printed has the keys of a result's type, and so has all that is in it."""
    kinds = [kind for kind in typing.get_args(described) if kind not in (type(None), ...)]
    if described is Any:
        return
    if isinstance(printed, list):
        for entry in printed:
            _check_json(entry, kinds[0])
    elif isinstance(printed, dict) and typing.get_origin(described) is Mapping:
        for entry in printed.values():
            _check_json(entry, kinds[1])
    elif isinstance(printed, dict):
        own = [kind for kind in kinds or [described] if is_dataclass(kind)]
        names = [[field.name for field in fields(kind)] for kind in own]
        if any(typing.get_origin(kind) is Mapping for kind in kinds):
            own = own if list(printed) in names else []  # any keys: a card, say
        assert not own or list(printed) in names, (list(printed), described)
        for kind in own:
            for name, inner in reference.hints(kind).items():
                _check_json(printed.get(name), inner)


def _crash_release():
    """A release that was begun and not committed."""

    def crash(*_):
        raise RuntimeError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(AssertionError):
        patch.setattr(Ledger, "commit", crash)
        run(f"labelguard {PRIVATIZE} --again --exhausted drop")


def _policy():
    run("labelguard policy new clinic --epsilon 3 --delta 1e-5 --allow rr:uses=50,block=1")


def _tool(here, patch):
    """A connector `label-studio` to a tool with answers, and what its hook was told of one more."""
    project, desk = connected(find(here), here, patch, name="label-studio")
    patch.setenv("LABELGUARD_LABEL_STUDIO_HOOK_SECRET", "of-tests-and-long-enough")
    for number in range(3):
        desk.answer(f"annotator-{number}", number, "left")
    deliver(project, desk.answer("annotator-0", 3, "right"), name="label-studio")
    Path("export.json").write_text(json.dumps([own["body"] for own in desk.records.values()]))


def _serve(line):
    """Run it on any port, in a process of its own, until it has answered."""
    words = shlex.split(line.replace(" --port 8410", ""))
    assert words[:2] == ["labelguard", "serve"], line
    with serving(find(Path()), *words[2:]) as server:
        with urlopen(f"{server.url}/healthz") as answer:
            assert answer.status == 200
        assert server.stop() == 0


def _base():
    """A model to train, and a configuration: the command's own takes minutes without a GPU."""
    from support.tiny_models import saved  # torch, for these commands alone

    saved(Path("base"), positions=1024)
    Path("train.yaml").write_text("max_steps: 2\n")


def _model():
    _base()
    run("labelguard train reward r0001 --model base --train-config train.yaml -o judge")


def _recipe():
    """A recipe of one step, and what it begins from."""
    _base()
    few = "{max_steps: 1, max_completion_length: 8, per_device_train_batch_size: 4}"
    Path("recipe.yaml").write_text(f"release: r0001\nmodel: base\nrl:\n  config: {few}\n")


def _dead_letters():
    with contextlib.closing(OpenProject.open(".").answers.open_inbox()) as inbox:
        for body in (b"[]", b"1", b"2", b"{"):
            inbox.store_dead_letter("label-studio", body, "not understood")


# What some examples take for granted.
PREPARED = {
    ("align",): _recipe,
    ("hook", "dead-letters"): _dead_letters,
    ("policy", "activate"): _policy,
    ("policy", "show"): _policy,
    ("hook", "run"): lambda: run("labelguard source add label-studio"),
    ("release", "abandon"): _crash_release,
    ("train", "dpo"): _base,
    ("train", "reward"): _base,
    ("train", "publish"): _model,
    ("project", "restore"): lambda: run("labelguard project backup backup.tar.zst"),
}


def console_lines(page):
    """The `$ labelguard …` lines of a page's console blocks."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        yield from re.findall(r"(?m)^\$ (.*)$", block)


@pytest.fixture
def preferences():
    """The reader's own file."""
    pq.write_table(week(0), "preferences.parquet")


def week(first):
    """400 labels of 40 workers on new questions, under other names of columns."""
    count, other = range(first, first + 400), ("older", "large")
    own = {
        "worker": [f"w{row % 40}" for row in count],
        "prompt": [f"question {row // 2}" for row in count],
        "chosen": ["yes" if row % 3 else "no" for row in count],
        "rejected": ["no" if row % 3 else "yes" for row in count],
        "model_chosen": ["small" if row % 3 else other[row // 2 % 2] for row in count],
        "model_rejected": [other[row // 2 % 2] if row % 3 else "small" for row in count],
    }
    return pa.table(own)


@pytest.mark.docs
def test_the_commands_of_the_readme_run_in_their_order_and_print_words_it_explains(preferences):
    lines = list(console_lines(ROOT / "README.md"))
    assert [unexplained(run(line)) for line in lines] == [[]] * 3
    assert Path("release/data.parquet").exists()


@pytest.mark.docs
def test_the_commands_of_features_run_in_their_order(preferences):
    lines = list(console_lines(ROOT / "docs" / "features.md"))
    assert lines
    for line in lines:
        run(line)


def _without_code(page):
    return re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))


@functools.cache
def _anchors(page):
    """What `#…` may lead to on a page: its headings, as forges name them."""
    headings = re.findall(r"(?m)^#+ (.+)$", _without_code(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", _without_code(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not anchor or anchor in _anchors(file.resolve()), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_running_text_and_their_options_exist(page):
    newest = _without_code(page).partition("\n## [0.3.0]")[0]  # of the changelog
    for line in re.findall(r"`(labelguard\s[^`]*)`", newest):
        command = main
        for word in line.split()[1:]:
            if isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", word):
                command = command.get_command(click.Context(command), word)
                assert command, f"{word} in {line}"
            elif word.startswith("-") and word != "--help":
                known = {name for one in command.params for name in one.opts + one.secondary_opts}
                assert word.partition("=")[0] in known, f"{word} in {line}"


VERSION = re.compile(r"\b[Mm]easured with \d+\.\d+\.\d+")


def test_every_page_of_results_says_at_its_head_with_which_version_it_was_measured():
    pages = sorted((ROOT / "docs/results").glob("*.md"))
    heads = {page.name: page.read_text("utf-8").splitlines()[:10] for page in pages}
    assert len(heads) > 3
    assert [name for name, head in heads.items() if not VERSION.search(" ".join(head))] == []
    assert not VERSION.search("measured with the current version")


def test_anchors_that_the_code_names_are_headings():
    rooms = ("labelguard", "trainer", "connectors")
    texts = (path.read_text("utf-8") for room in rooms for path in (ROOT / room).rglob("*.py"))
    link = re.compile(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?")
    named = {found for text in texts for found in link.findall(text)}
    assert named
    for page, anchor in named:
        assert (ROOT / page).exists(), page
        assert not anchor or anchor in _anchors(ROOT / page), f"{page}#{anchor}"


@pytest.mark.parametrize("arguments", ["-c 'import labelguard'", "-m labelguard --help"])
def test_what_starts_often_loads_little(arguments):
    heavy = ("torch", "transformers", "scipy.stats", "dp_accounting", "duckdb", "polars", "pyarrow")
    command = [sys.executable, "-X", "importtime", *shlex.split(arguments)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(re.findall(r"\| +([\w.]+)$", finished.stderr, re.MULTILINE))
    assert "labelguard" in loaded
    assert not loaded.intersection(heavy)


# The pages for one reader each: their commands run in order, and print what the page shows.

ROOMS = ("labelguard", "connectors", "trainer")
ANCHOR = re.compile(r"labelguard-anchor:1:\d+:[0-9a-f]{64}")

DRAFT = "policy new clinic --epsilon 3 --delta 1e-5 --allow rr:uses=4"
IN_FORCE = ("policy activate clinic --yes", "privatize labels.parquet --mechanism rr")
# What whoever reads the page finds.
COMMANDS = {
    "privacy-officer.md": (SIMULATE, "init", DRAFT),
    "budget.md": (SIMULATE, "init"),
    "operations.md": (SIMULATE, "init", DRAFT, *IN_FORCE),
    "adopting-label-studio.md": ("init",),
}


def turns(block):
    """Each command of a console, and the lines that are shown below it."""
    for turn in block.replace("\\\n", "").split("$ ")[1:]:
        command, *shown = turn.splitlines()
        yield command, [line for line in shown if line not in ("", "…")]


def _history(here, patch):
    """A connector `label-studio` to a tool in which people have annotated for long."""
    _, desk = connected(find(here), here, patch, name="label-studio")
    for number in range(60):
        desk.answer(str(12 + number % 20), number, None if number % 9 == 0 else "left")


def plain(line, here):
    """Without what is another each time: ids, digests, sizes, times, the project's directory."""
    line = line.replace(str(here), "/srv/clinic")
    line = re.sub(r"\b[0-9a-f]{8,}\b|[\d,]+(?= bytes)|\d{4}-\d\d-\d\dT[\d:]+Z", "…", line)
    return " ".join(line.split())


@pytest.mark.docs
@pytest.mark.parametrize("page", COMMANDS)
def test_the_commands_of_a_page_print_what_it_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    kept = ""

    def run(command):
        return commands.run(*shlex.split(command), input="y\n").stdout

    for line in COMMANDS[page]:
        run(line)
    if page == "adopting-label-studio.md":
        _history(tmp_path, monkeypatch)
    consoles = (block for _, block in blocks(page, "console"))
    for command, shown in (turn for block in consoles for turn in turns(block)):
        program, _, words = command.partition(" ")
        assert program == "labelguard"
        # The anchor of the page is of another run: here it is the one that was printed last.
        printed = run(ANCHOR.sub(kept, words))
        kept = [kept, *ANCHOR.findall(printed)][-1]
        told = [ANCHOR.sub("anchor", plain(line, tmp_path)) for line in printed.splitlines()]
        for line in shown:
            assert ANCHOR.sub("anchor", plain(line, tmp_path)) in told, f"{command}\n{printed}"


def test_the_accountant_that_the_page_asks_agrees_with_the_price():
    from labelguard.accounting import subsampled

    [(_, block)] = blocks("privacy-officer.md", "python")
    [found] = _code(block, {})
    assert float(found) == pytest.approx(1.0, rel=0.01)
    assert float(found) == pytest.approx(subsampled.epsilon(14.92, 0.2, 100, 1e-5), rel=0.01)


def test_every_variable_that_is_read_is_in_the_table():
    told = (DOCS / "cli.md").read_text(encoding="utf-8")
    sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    names = {
        name
        for path in sources
        for name in re.findall(r"LABELGUARD(?:_[A-Z]+)+", path.read_text(encoding="utf-8"))
    }
    assert len(names) > 8
    assert [name for name in sorted(names) if f"`{name}" not in told] == []


# The tutorial runs as it stands: block after block, in one directory, and prints what it shows.


PAGE = "tutorial.md"


def _command(line):
    """Run it; return what it prints, line by line."""
    program, *arguments = shlex.split(line)
    assert program == "labelguard", line
    return commands.run(*arguments).output.splitlines()


def _code(block, names):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, PAGE, "exec"), names)
    return printed.getvalue().splitlines()


@pytest.mark.docs
def test_the_tutorial_prints_what_it_shows():
    names: dict[str, Any] = {}
    printed: list[str] = []
    for kind, block in blocks(PAGE, "python", "console", "text", "yaml"):
        if kind == "python":
            printed = _code(block, names)
        elif kind == "yaml":
            Path("train.yaml").write_text(block, encoding="utf-8")
        elif kind == "text":  # noise is new in every run
            (told,), (found,) = (re.findall(r"\d\.\d+", one) for one in (block, printed[0]))
            assert float(told) == pytest.approx(float(found), abs=0.1)
            assert block.strip().replace(told, found) == printed[0]
        else:
            for command, shown in turns(block):
                lines = iter(_command(command))
                for line in shown:
                    assert line in lines, f"{command} does not print, after the line before: {line}"
    evaluation = json.loads(Path("aligned/evaluation.json").read_text(encoding="utf-8"))
    assert evaluation["teacher"]["agreement"] > 0.8
    assert evaluation["probes"]["accuracy"] > 0.6

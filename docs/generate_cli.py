"""Write the reference of the command line: docs/cli.md from the commands' own help, and
docs/json.md from the dataclasses that they return.

    python docs/generate_cli.py

A test compares cli.md with what this writes; json.md is for the site only (`make docs`).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import click

from labelguard.cli.main import main
from labelguard.cli.options import HELP

PAGE = Path(__file__).with_name("cli.md")
JSON_PAGE = Path(__file__).with_name("json.md")
_WIDTH = 80

EXIT_CODES = {
    0: "done",
    1: "an error, or something that does not hold (`verify`, `doctor`, `report`)",
    2: "wrong usage, an extra that is not installed, or nobody agreed to a first release",
    3: "labelers are exhausted; nothing was charged or released (`retrain`: with `--strict`)",
    4: "another job works in the project, or another run of the same job is under way",
    130: "stopped by Ctrl-C (129, 143: by a signal to hang up, or to end); run it again to finish",
}

_VARIABLES_HEAD = """
| environment variable | |
|---|---|
"""

_COMPLETION = """
## Completion

A shell completes commands, options and their values, files, and the project's releases, once a
line in its start file says so:

```text
~/.bashrc                                   eval "$(_LABELGUARD_COMPLETE=bash_source labelguard)"
~/.zshrc                                    eval "$(_LABELGUARD_COMPLETE=zsh_source labelguard)"
~/.config/fish/completions/labelguard.fish  _LABELGUARD_COMPLETE=fish_source labelguard | source
```

bash has to be 4.4 or newer; in zsh the line stands below `compinit`. Completing reads no label,
asks no server and opens no key, but for names of policies, which the ledger has.
"""

_HEAD = """\
# Command line

Generated from `labelguard --help` by `python docs/generate_cli.py`; do not edit by hand.

Results go to standard output; notes, errors and progress go to standard error. An error is one
line that says what is wrong, where, and what to do; it never holds a label.

| exit code | meaning |
|---|---|
"""

ENVIRONMENT = {
    "LABELGUARD_PROJECT": "the project directory, where `--project` is not given",
    "LABELGUARD_KEYS": "the project's keys directory; default `.labelguard/keys`",
    "LABELGUARD_KEY_FILE": "a file to read the project key from, where that directory has none",
    "LABELGUARD_KEY_COMMAND": "the same: a command that prints it",
    "LABELGUARD_LEDGER_URL": "the ledger's database; default: an SQLite file in the project",
    "LABELGUARD_NAME_API_KEY": "the API key of connector NAME; with `_FILE`, a file that holds it",
    "LABELGUARD_NAME_HOOK_SECRET": "the hook's secret of connector NAME; with `_FILE`, a file",
    "LABELGUARD_NOTIFY_SECRET": "the secret by which `retrain` signs notifications",
    "LABELGUARD_NOTIFY_SECRET_FILE": "a file that holds it",
    "LABELGUARD_STATUS_TOKEN": "what `/status` and `/metrics` of `serve` ask for; with `_FILE`, a "
    "file that holds it",
    "LABELGUARD_CACHE": "vectors of public texts; default `labelguard` in `XDG_CACHE_HOME` or "
    "`~/.cache`",
    "LABELGUARD_PROGRESS": "`off`: no progress on standard error",
    "XDG_STATE_HOME": "where `labelguard/projects` lists the projects you made; default "
    "`~/.local/state`",
    "TMPDIR": "where `plan`, `inspect` and `score` keep rows while they run",
    "HF_TOKEN": "read by the libraries that download models",
}

_JSON = """
## JSON output

Every command with `--json` prints one JSON document. Its keys are those of the library's results;
the site (`make docs`) lists them on the page *JSON output*.
"""

_JSON_HEAD = """\
# JSON output

Generated from the results of the library by `python docs/generate_cli.py`; do not edit by hand.

Every command with `--json` prints one JSON document: an object, or a list of objects. Keys stay
what they are; further ones may be added. A number that JSON cannot hold is null. `release show`
prints [the card](releases.md#the-card), as `card.json` has it; with `--head` the coefficients.

| command | prints |
|---|---|
"""

_TYPES = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "any"}


def commands(
    command: click.Command = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of this project with its path (`("account", "rr")`), groups before members."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            # Other packages may add commands of their own; they are not ours to document.
            if child and child.callback and child.callback.__module__.startswith("labelguard"):
                yield from commands(child, (*path, name))


def help_text(path: tuple[str, ...], command: click.Command) -> str:
    """What `--help` prints on a terminal of 80 columns."""
    context = click.Context(
        command,
        info_name=" ".join(["labelguard", *path]),
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        **HELP,
    )
    return command.get_help(context)


def results() -> dict[str, Any]:
    """What each command with --json returns, by the command's name: a type."""
    return {
        " ".join(path): hints(command.callback)["return"]
        for path, command in commands()
        if any(option.name == "as_json" for option in command.params)
    }


def hints(described: Any) -> dict[str, Any]:
    """The types of a class's fields, or of a function, also those imported for type checkers."""
    parts = described.__mro__[-2::-1] if isinstance(described, type) else (described,)
    names = {name: found for part in parts for name, found in _known(part).items()}
    return typing.get_type_hints(described, {**names, "Any": Any, "Mapping": Mapping})


def _known(described: Any) -> dict[str, Any]:
    """What is known by name where a class or a function was written."""
    module = inspect.getmodule(described)
    assert module
    names = dict(vars(module))
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("labelguard"):
            source = importlib.import_module(node.module or "")
            names |= {a.name: vars(source)[a.name] for a in node.names if a.name in vars(source)}
    return names


def _meanings(described: type) -> dict[str, str]:
    """The comment above, or the docstring below, each field of a dataclass and its bases."""
    meanings: dict[str, str] = {}
    for part in described.__mro__[:-1]:
        source = textwrap.dedent(inspect.getsource(part))
        for comment, field in re.findall(r"(?m)^((?: *# .*\n)+) *(\w+):", source):
            meanings[field] = " ".join(comment.replace("#", "").split())
        meanings |= {
            field.target.id: " ".join(text.value.value.split())
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ClassDef)
            for field, text in itertools.pairwise(node.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        }
    return meanings


def parts(found: Any) -> list[Any]:
    """The types that a type is made of, itself first."""
    return [found, *(part for inner in typing.get_args(found) for part in parts(inner))]


def _type(found: Any) -> str:
    """A type as a reader of JSON knows it."""
    origin, inner = typing.get_origin(found), typing.get_args(found)
    if is_dataclass(found):
        return f"[{found.__name__}](#{found.__name__.lower()})"
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (types.UnionType, typing.Union):
        return " or ".join("null" if part is types.NoneType else _type(part) for part in inner)
    if inner and issubclass(origin, Mapping):
        return "object" if inner[1] is Any else f"object of {_type(inner[1])} by name"
    return f"list of {_type(inner[0])}" if inner else _TYPES[found]


def json_page() -> str:
    """The text of docs/json.md."""
    found = results()
    rows = "".join(f"| `{name}` | {_type(found[name])} |\n" for name in sorted(found))
    shown: dict[str, type] = {}
    waiting = [part for name in sorted(found) for part in parts(found[name])]
    while waiting:
        part = waiting.pop(0)
        if is_dataclass(part) and isinstance(part, type) and part.__name__ not in shown:
            shown[part.__name__] = part
            waiting += [inner for hint in hints(part).values() for inner in parts(hint)]
    return _JSON_HEAD + rows + "".join(map(_section, sorted(shown.items())))


def _section(named: tuple[str, type]) -> str:
    name, described = named
    kinds, meanings = hints(described), _meanings(described)
    rows = "".join(
        f"| `{field.name}` | {_type(kinds[field.name])} | {meanings[field.name]} |\n"
        for field in fields(described)  # type: ignore[arg-type]
    )
    about = inspect.getdoc(described)
    return f"\n## {name}\n\n{about}\n\n| key | type | meaning |\n|---|---|---|\n{rows}"


def page() -> str:
    """The text of docs/cli.md."""
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items())
    sections = "".join(
        f"\n## {' '.join(['labelguard', *path])}\n\n```text\n{help_text(path, command)}\n```\n"
        for path, command in commands()
    )
    variables = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in ENVIRONMENT.items())
    return f"{_HEAD}{codes}{_VARIABLES_HEAD}{variables}{_COMPLETION}{sections}{_JSON}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    JSON_PAGE.write_text(json_page(), encoding="utf-8")

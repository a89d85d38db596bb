"""Pages of docs/ as their readers follow them: blocks of TOML and of commands, in their order."""

import importlib.util
import re
from pathlib import Path

import click

from labelguard.cli.main import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def script(path):
    """A file of Python that is in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page, *languages):
    """The fenced blocks of docs/`page` in these languages: (language, text)."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for language, block in re.findall(r"(?m)^```(\w+)\n(.*?)^```$", text, re.DOTALL):
        if language in languages:
            yield language, block


def commands(block):
    """The lines behind a `$` of a console, all lines of a script; without comments."""
    marked = re.findall(r"(?m)^\$ (.*)$", block)
    return [line for line in marked or block.splitlines() if line and not line.startswith("#")]


def check_command(words):
    """Raises for words behind `labelguard` that are no command, or no option of it."""
    command: click.Command = main
    context = click.Context(main, info_name="labelguard", **main.context_settings)
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(context, name)
        assert found, f"there is no command {name}"
        command = found
    command.make_context(command.name, words, parent=context)

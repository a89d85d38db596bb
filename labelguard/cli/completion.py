"""What a shell completes beyond click's commands, options and choices: files, releases, policies.

A prompt is no place for errors: what cannot be told at once, and for nothing, is not completed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

# What shells type as it is: bash would put `$(…)`, found in a name on disk, into the line.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def files(_: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Files and directories, as the shell itself finds them."""
    return [CompletionItem(typed, type="file")]


def releases(context: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
    """Ids of the project's releases on disk; no ledger and no key is opened for it."""
    from labelguard.project.project import find

    with contextlib.suppress(Exception):
        found = find(context.params.get("project")).releases.glob("r[0-9]*")
        names = sorted(path.name for path in found if not path.suffix)
        return [CompletionItem(name) for name in _fitting(names, typed)]
    return []


def copies(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Releases, else files: where a directory with a copy of one may be named."""
    return releases(context, option, typed) or files(context, option, typed)


def policies(context: click.Context, _: click.Parameter, typed: str) -> list[CompletionItem]:
    """Names of policies, where the ledger and its key are at hand without asking a server."""
    from labelguard.project.project import find

    with contextlib.suppress(Exception):
        project = find(context.params.get("project"))
        if (project.keys / "project.key").is_file() and "LABELGUARD_LEDGER_URL" not in os.environ:
            from labelguard.project.policies import listing

            states = {one.name: one.state for one in listing(project)}
            return [CompletionItem(name, help=states[name]) for name in _fitting(states, typed)]
    return []


def _fitting(names: Iterable[str], typed: str) -> list[str]:
    return [name for name in names if _PLAIN.fullmatch(name) and name.startswith(typed)]

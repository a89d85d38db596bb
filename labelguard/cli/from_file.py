"""`--config FILE`: options of a command from a file; what is typed comes first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = ["columns_of", "config_option", "option_name"]

F = TypeVar("F", bound=Callable[..., Any])
_COLUMNS = "labelguard.columns"


def config_option(command: str) -> Callable[[F], F]:
    """Let a command take options from a file; what is typed comes before what the file says."""

    def take(context: click.Context, option: click.Parameter, path: Path | None) -> None:
        if path is None:
            return
        from labelguard.release import configured

        said = configured.read(command, path)
        context.meta[_COLUMNS] = said.pop("columns", {})
        context.default_map = {
            parameter.name: _as_typed(parameter, said[name])
            for parameter in context.command.get_params(context)
            if (name := option_name(parameter)) in said and parameter.name
        }

    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=take,
        help="Take options from a file, YAML or TOML (docs/configuration.md); what is typed comes "
        "first.",
    )


def option_name(parameter: click.Parameter) -> str:
    """How a file calls an option: by its long name, with underscores."""
    return max(parameter.opts, key=len).lstrip("-").replace("-", "_")


def columns_of(typed: str, labeler_column: str | None = None) -> dict[str, str]:
    """The names of columns that were typed, and those of `--config` for other roles."""
    from labelguard.ingest import layouts

    said: Mapping[str, str] = click.get_current_context().meta.get(_COLUMNS, {})
    return {**said, **layouts.parse_columns(typed, labeler_column)}


def _as_typed(parameter: click.Parameter, value: Any) -> Any:
    """What stands in a file, as it would be typed."""
    if isinstance(parameter.type, click.Choice):
        same = (one for one in parameter.type.choices if type(value)(one) == value)
        return next(same, value)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value

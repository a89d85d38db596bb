"""YAML and TOML as people write settings: one mapping, each name once, no types but JSON's.

Whoever wrote a file, reading it takes little time and memory, and no value of it is in an error.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelguard.errors import LabelguardError

if TYPE_CHECKING:
    import yaml

__all__ = ["MOST_BYTES", "parse_toml", "parse_yaml", "read"]

# The most bytes of a file of settings.
MOST_BYTES = 64 << 10
_MOST_DEPTH = 20
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
_LINE = re.compile(r"at line ([0-9]+)")
_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
# a.b.c… of more parts than tables may be nested; tomllib's memory grows with their square.
_LONG_NAME = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{_MOST_DEPTH},}}")


def read(path: Path, *, hint: str = "", empty: bool = False) -> dict[str, Any]:
    """What a file says: TOML if its name ends with .toml, else YAML.

    `hint` is for one that is not there; `empty`: it may say nothing. Raises `LabelguardError` with
    the line that cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise LabelguardError(f"there is no {path}" + (f"; {hint}" if hint else "")) from None
    except OSError as error:
        raise LabelguardError(f"cannot read {path}: {error.strerror}") from None
    if path.suffix.lower() == ".toml":
        return parse_toml(data, path.name)
    return parse_yaml(data, path.name, empty=empty)


def parse_toml(data: bytes, name: str) -> dict[str, Any]:
    """What the bytes of the file `name` say as TOML."""
    text = _text(data, name)
    if _LONG_NAME.search(text):
        raise LabelguardError(f"{name}: this is nested too deep")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise LabelguardError(f"{name}: this is nested too deep") from None
    except ValueError as error:  # numbers of very many digits, too
        line = _LINE.search(str(error))
        where = f", line {line[1]}" if line else ""
        raise LabelguardError(
            f"{name}{where}: this is not TOML, or a name stands here twice"
        ) from None
    _check_depth(found, name)
    return found


def parse_yaml(data: bytes, name: str, *, empty: bool = False) -> dict[str, Any]:
    """What the bytes of the file `name` say as YAML."""
    import yaml

    try:
        found = yaml.load(_text(data, name), _loader())
    except RecursionError:
        raise LabelguardError(f"{name}: this is nested too deep") from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        why = getattr(error, "note", None) or "this is not YAML"
        raise LabelguardError(f"{name}{where}: {why}") from None
    if found is None and empty:
        return {}
    if not isinstance(found, dict):
        raise LabelguardError(f"{name} must hold lines of `name: value`")
    return found


def _text(data: bytes, name: str) -> str:
    if len(data) > MOST_BYTES:
        raise LabelguardError(f"{name}: settings take {MOST_BYTES >> 10} KiB at most")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise LabelguardError(f"{name}: this is not UTF-8") from None


def _check_depth(found: Any, name: str) -> None:
    """Of what a parser has made, level by level: dotted names nest without brackets."""
    level = [found]
    for _ in range(_MOST_DEPTH):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level]
        level = [part for one in inner for part in one if isinstance(part, dict | list)]
        if not level:
            return
    raise LabelguardError(f"{name}: this is nested too deep")


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):  # a few of them may stand for gigabytes
                raise _refusal("references (*name) do not belong here", self.peek_event())
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if key.tag != "tag:yaml.org,2002:str":
                    raise _refusal("a name must be a text", key)
                if key.value in seen:
                    raise _refusal("a name stands here twice", key)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    # 1e-5 is a number, as in YAML 1.2; YAML 1.1 takes it for a text.
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))
    return Loader


def _refusal(why: str, node: Any) -> yaml.MarkedYAMLError:
    import yaml

    return yaml.MarkedYAMLError(note=why, problem_mark=node.start_mark)

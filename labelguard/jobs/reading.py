"""YAML as a job file has it: one mapping, each key once, no references, no types but JSON's."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelguard.errors import LabelguardError

if TYPE_CHECKING:
    import yaml

_MOST_BYTES, _MOST_DEPTH = 64 << 10, 20
_NOT_JSON = ("tag:yaml.org,2002:timestamp",)


def read_yaml(path: Path) -> dict[str, Any]:
    """What the file says. Raises `LabelguardError` with the line that cannot be read."""
    import yaml

    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise LabelguardError(
            f"there is no {path}; labelguard retrain {shlex.quote(str(path))} --init writes one"
        ) from None
    except OSError as error:
        raise LabelguardError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise LabelguardError(f"{path.name}: a job takes {_MOST_BYTES >> 10} KiB at most")
    try:
        found = yaml.load(data.decode(), _loader())
    except _Refused as error:
        raise LabelguardError(f"{path.name}, line {error.line}: {error}") from None
    except (UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise LabelguardError(f"{path.name}{where}: this is not YAML") from None
    if not isinstance(found, dict):
        raise LabelguardError(
            f"{path.name} must hold lines of `name: value`; labelguard retrain --init writes one"
        )
    return found


class _Refused(Exception):
    def __init__(self, why: str, node: Any) -> None:
        super().__init__(why)
        self.line = node.start_mark.line + 1


@cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise _Refused("references (*name) do not belong into a job", self.peek_event())
            self.depth += 1
            if self.depth > _MOST_DEPTH:
                raise _Refused("this is nested too deep for a job", self.peek_event())
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                    raise _Refused("names must be texts", key)
                if key.value in seen:
                    raise _Refused("a name stands here twice", key)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        first: [one for one in found if one[0] not in _NOT_JSON]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return Loader

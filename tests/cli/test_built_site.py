"""The site as it was built (`make docs`): with nothing from elsewhere."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytestmark = pytest.mark.site

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "reference"]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    """What a built page loads, and its classes."""

    def __init__(self, text):
        super().__init__()
        self.loads: list[str] = []
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.classes |= set((found.get("class") or "").split())
        if loaded := found.get(LOADED.get(tag, "")):
            self.loads.append(loaded)


def test_nothing_is_loaded_from_elsewhere():
    pages = [Page(path.read_text(encoding="utf-8")) for path in SITE.rglob("*.html")]
    loads = {load for page in pages for load in page.loads}
    for path in SITE.rglob("*.css"):
        loads |= set(re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", path.read_text()))
    assert len(pages) > 40 and any(load.endswith(".css") for load in loads)
    assert [load for load in loads if re.match(r"(?!data:)[a-z]+:|//", load)] == []
    assert not any("mermaid" in page.classes for page in pages)  # Material's script fetches it


def test_search_knows_the_pages_but_not_the_code_they_show():
    index = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {document["location"].partition("#")[0] for document in index["docs"]}
    pages = {str(page.relative_to(ROOT / "docs").with_suffix(".html")) for page in PAGES}
    assert pages | {"security.html", "reference/python.html"} <= found
    assert not any(location.startswith("source/") for location in found)

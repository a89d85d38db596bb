"""The site as it was built (`make docs`): as pages are on a forge, with nothing from elsewhere."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

pytestmark = pytest.mark.site

ROOT = Path(__file__).parents[2]
SITE = ROOT / "site"
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "reference"]
SHAPES = {*("h1", "h2", "h3", "h4", "p", "li", "ul", "ol", "table", "tr", "td", "th"), "pre"}
SHAPES |= {"strong", "em", "blockquote", "img"}
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    """Counts elements (of a built page: those of its article), and what is loaded."""

    def __init__(self, text, *, built):
        super().__init__()
        self.shapes: Counter[str] = Counter()
        self.loads: list[str] = []
        self.classes: set[str] = set()
        self._counts = not built
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self._counts |= tag == "article"
        if self._counts and tag in SHAPES:
            self.shapes[tag] += 1
        self.classes |= set((found.get("class") or "").split())
        if loaded := found.get(LOADED.get(tag, "")):
            self.loads.append(loaded)

    def handle_endtag(self, tag):
        self._counts &= tag != "article"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_same_shape_on_a_forge_and_on_the_site(page):
    """Their Markdown differs in what is a list, a code block or a table."""
    forge = MarkdownIt("commonmark").enable("table").render(page.read_text(encoding="utf-8"))
    built = SITE / page.relative_to(ROOT / "docs").with_suffix(".html")
    assert (
        Page(built.read_text(encoding="utf-8"), built=True).shapes
        == Page(forge, built=False).shapes
    )


def test_nothing_is_loaded_from_elsewhere():
    pages = [Page(path.read_text(encoding="utf-8"), built=True) for path in SITE.rglob("*.html")]
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


def test_the_reference_shows_signatures_and_docstrings():
    text = (SITE / "reference" / "python.html").read_text(encoding="utf-8")
    assert 'id="labelguard.privatize"' in text
    words = " ".join(re.sub(r"<[^>]+>", "", text).split())
    assert "labeler-level label differential privacy" in words
    assert "-&gt; Release" in words

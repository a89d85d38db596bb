"""Pictures of a project's report for the docs: wide and narrow, light and dark.

    python docs/generate_screenshots.py PROJECT|REPORT.html

They are docs/images/report-WIDTH-MODE.png. It needs Debian's Chromium and the group `browser`, as
`make test-browser` installs it. Colors are reduced, so that the pictures stay small.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from labelguard.report.page import write_report

IMAGES = Path(__file__).parent / "images"
CHROMIUM = "/usr/bin/chromium"
WIDTHS, MODES = (1280, 390), ("light", "dark")
_COLORS = 24
_TALLEST = 4_800
"""Pixels of a picture; the page is longer."""
_LONGEST = 250_000
"""Bytes of a picture."""


def main(source: Path) -> None:
    """Take pictures of a report, or of one that is written now of a project."""
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        page = source.resolve()
        if source.is_dir():
            page = Path(scratch) / "report.html"
            write_report(page, project=source)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in WIDTHS:
            for mode in MODES:
                data = _small(_taken(browser, page, width, mode))
                path = IMAGES / f"report-{width}-{mode}.png"
                if len(data) > _LONGEST:
                    sys.exit(f"{path} would have {len(data):,} bytes, above {_LONGEST:,}")
                path.write_bytes(data)
                print(f"{path}: {len(data):,} bytes")
        browser.close()


def _taken(browser: Browser, page: Path, width: int, mode: str) -> bytes:
    """The page from its beginning, as PNG."""
    size = {"width": width, "height": 900}
    context = browser.new_context(viewport=size, color_scheme=mode)  # type: ignore[arg-type]
    opened = context.new_page()
    opened.goto(page.as_uri())
    tall = min(opened.evaluate("document.documentElement.scrollHeight"), _TALLEST)
    clip = {"x": 0, "y": 0, "width": width, "height": tall}
    data = opened.screenshot(full_page=True, clip=clip)  # type: ignore[arg-type]
    context.close()
    return data


def _small(data: bytes) -> bytes:
    """The same picture with few colors."""
    image = Image.open(io.BytesIO(data)).convert("RGB").quantize(_COLORS, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))

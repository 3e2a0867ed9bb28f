"""Pages of ``docs/``, and what their tables name."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def sections(page: str, level: str = "##") -> dict[str, str]:
    """A page's text by the headings of one level, each up to the next heading of this or a higher level."""
    text = (DOCS / page).read_text(encoding="utf-8")
    _, *parts = re.split(rf"^{level} (.+)$", text, flags=re.MULTILINE)
    texts = (re.split(rf"^#{{1,{len(level)}}} ", part, flags=re.MULTILINE)[0] for part in parts[1::2])
    return dict(zip(parts[::2], texts, strict=True))


def named_in_rows(text: str) -> list[str]:
    """Everything in backquotes in the first cell of a table's rows, in order."""
    cells = re.findall(r"^\| (`.*?) \|", text, flags=re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]

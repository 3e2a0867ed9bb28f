"""What pages of the project name exists: pages and headings of links, source files, their functions."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from siltstone.cli.main import COMMANDS
from tests.support.pages import DOCS

ROOT = DOCS.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and GitLab make them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        name, _, anchor = link.partition("#")
        if ":" in name:
            continue
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_readme_leads_to_every_page() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in DOCS.glob("*.md") if f"](docs/{page.name}" not in text] == []


SOURCE = ROOT / "src" / "siltstone"
NOT_HISTORY = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which names earlier files, too
FILE = re.compile(r"`((?:[\w-]+/)*[\w-]+\.(?:py|toml|sh|html|js|css))`")
FOLDER = re.compile(r"`((?:[\w-]+/)+)`")
NAME = re.compile(r"`(_?[A-Za-z]\w*(?:\.\w+)*)`")


def paragraphs(page: Path) -> list[str]:
    """A page's paragraphs and rows of tables, without its code blocks."""
    return [part for part in re.split(r"\n\n|\n(?=\|)|\n(?=- )", prose(page)) if part]


def named_files(paragraph: str, page: Path) -> tuple[list[Path], list[str]]:
    """Source files and folders that a paragraph names, and the names of those that do not exist. A name
    without a folder may stand in a folder that the paragraph, or the first cell of its row, has named."""
    bases, paths, missing = [ROOT, SOURCE, page.parent], list[Path](), list[str]()
    row = re.match(r"\| `([\w/]+/)` \|", paragraph)
    if row:
        bases.append(SOURCE / row[1])
    for name in sorted(FOLDER.findall(paragraph)) + FILE.findall(paragraph):
        path = next((base / name for base in bases if (base / name).exists()), None)
        if path is None:
            missing.append(name)
            continue
        paths.append(path)
        bases += [path, path.parent] if path.is_dir() else [path.parent]
    return paths, missing


@pytest.mark.parametrize("page", NOT_HISTORY, ids=lambda page: str(page.relative_to(ROOT)))
def test_source_files_that_a_page_names_exist(page: Path) -> None:
    assert {part[:80]: names for part in paragraphs(page) if (names := named_files(part, page)[1])} == {}


@functools.cache
def words_in(path: Path) -> str:
    """A source file's text, or that of the files right in a folder, and the names of all below it."""
    if path.is_file():
        return f"{path.stem} {path.read_text(encoding='utf-8')}"
    names = " ".join(below.stem for below in path.rglob("*"))
    return " ".join([names, *(file.read_text(encoding="utf-8") for file in path.glob("*.py"))])


def is_in(text: str, name: str) -> bool:
    """Whether a text has a name, each part of it for itself; ``st.read`` and its like are for users."""
    return name.startswith("st.") or all(re.search(rf"\b{part}\b", text) for part in name.split("."))


@pytest.mark.parametrize("page", [ROOT / "ARCHITECTURE.md", DOCS / "changing.md"], ids=lambda page: page.stem)
def test_functions_in_the_tables_of_what_to_read_are_in_the_files_beside(page: Path) -> None:
    unknown = {}
    for row in paragraphs(page):
        paths, _ = named_files(row, page)
        if row.startswith("|") and paths:
            text = " ".join(map(words_in, paths))
            names = set(NAME.findall(FILE.sub("", row))) - set(COMMANDS)
            if missing := {name for name in names if not is_in(text, name)}:
                unknown[row[:80]] = missing
    assert unknown == {}


def test_a_file_and_a_function_that_do_not_exist_are_noticed() -> None:
    row = "| a rule | `compaction/rewrite.py` (`decide_retention`), `work.py`, `works.py`, `log/gone.py` |"
    paths, missing = named_files(row, ROOT / "ARCHITECTURE.md")
    assert [path.name for path in paths] == ["rewrite.py", "work.py"]
    assert missing == ["works.py", "log/gone.py"]

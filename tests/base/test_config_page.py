"""docs/configuration.md is the table: the committed page is the generated one, and every name is in it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from siltstone.base.config_table import ALL_KEYS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "configuration.md"
SCRIPT = ROOT / "scripts" / "configuration_page.py"
reference_page = runpy.run_path(str(SCRIPT))["reference_page"]


def test_the_committed_page_is_the_generated_one() -> None:
    generated = reference_page()
    assert PAGE.read_text(encoding="utf-8") == generated, (
        "python scripts/configuration_page.py > docs/configuration.md"
    )


def test_every_name_is_in_the_page() -> None:
    page = reference_page()
    for key in ALL_KEYS:
        assert page.count(f"\n| `{key.name}`") == 1
        assert all(f"`{name}`" in page for name in key.names)
        assert key.doc in page and key.origin_note in page


def test_the_script_writes_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert capsys.readouterr().out == reference_page()

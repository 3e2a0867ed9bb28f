"""docs/recordings.md is what the commands print."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_recordings_are_what_the_commands_print() -> None:
    spec = importlib.util.spec_from_file_location("recordings", ROOT / "scripts" / "recordings.py")
    assert spec is not None and spec.loader is not None
    recordings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recordings)
    assert recordings.page() == (ROOT / "docs" / "recordings.md").read_text(encoding="utf-8")

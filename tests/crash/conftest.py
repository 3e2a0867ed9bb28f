"""Crash tests make thousands of small trees: in memory, since their model knows what is durable."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import in_memory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """An empty folder, which is removed after the test."""
    with tempfile.TemporaryDirectory(prefix="siltstone-", dir=in_memory.FOLDER) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model knows what was synced; the real disk need not."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)

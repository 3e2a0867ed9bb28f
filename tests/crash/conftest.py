"""Crash tests make thousands of small trees, in memory where there is room: their model knows what is durable."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.log.machine import MEMORY

_ROOM = 1 << 30


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """An empty folder, which goes with the test."""
    there = Path(MEMORY).is_dir() and shutil.disk_usage(MEMORY).free > _ROOM
    with tempfile.TemporaryDirectory(prefix="siltstone-", dir=MEMORY if there else None) as folder:
        yield Path(folder)

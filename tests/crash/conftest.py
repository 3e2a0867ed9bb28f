"""Crash tests make thousands of small trees: in memory, since their model knows what is durable."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import in_memory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """An empty folder, which goes with the test."""
    with tempfile.TemporaryDirectory(prefix="siltstone-", dir=in_memory.FOLDER) as folder:
        yield Path(folder)

"""Fixtures that every test may use."""

from pathlib import Path

import pytest

from tests.golden_sets import unpack_broker, unpack_golden


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of the golden sets, unpacked once; read only: stage a round to change it."""
    return unpack_golden(tmp_path_factory.mktemp("golden-sets"))


@pytest.fixture
def stopped_broker(tmp_path: Path) -> tuple[Path, Path]:
    """The two log directories of a stopped Kafka 4.3 broker, fresh for each test: (data0, data1)."""
    return unpack_broker(tmp_path / "broker")

"""Fixtures of the handlers' tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import ServedBroker, served


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker over an empty directory, without sockets."""
    with served(tmp_path) as broker:
        yield broker

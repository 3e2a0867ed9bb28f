"""Without Kafka no test here runs."""

from __future__ import annotations

import pytest

from tests.support.kafka.jars import kafka_libs


@pytest.fixture(scope="session", autouse=True)
def _kafka_is_here() -> None:
    """Fail each test with the reason when Kafka cannot be had."""
    kafka_libs()

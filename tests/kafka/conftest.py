"""Without Kafka no test here runs."""

from __future__ import annotations

import pytest

from tests.support.command_line import Command, in_this_process
from tests.support.kafka.jars import kafka_libs


@pytest.fixture(scope="session", autouse=True)
def _kafka_is_here() -> None:
    """Fail each test with the reason when Kafka cannot be had."""
    kafka_libs()


@pytest.fixture
def siltstone(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command line; ``stdin`` is what is piped into it."""
    return in_this_process(capsysbinary, monkeypatch)

"""Answers of a broker's client, for tests of the code that asks it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException


def answered(result: object) -> Future[Any]:
    """A future of a result, or of the error with this code."""
    future: Future[Any] = Future()
    if isinstance(result, int):
        future.set_exception(KafkaException(KafkaError(result)))
    else:
        future.set_result(result)
    return future

"""What tests of the embedded brokers ask of a real client."""

from __future__ import annotations

import confluent_kafka as ck

from siltstone.broker.embedded import EmbeddedBroker
from siltstone.broker.separate import BrokerProcess

LIMIT_S = 20


def sent(broker: EmbeddedBroker | BrokerProcess, value: bytes, **settings: object) -> list[object]:
    """Send a record; the errors that its delivery ended with."""
    errors: list[object] = []
    options = {"bootstrap.servers": broker.address, "log_level": 0, "retry.backoff.ms": 10, **settings}
    producer = ck.Producer(options)
    producer.produce("users", value, b"key", callback=lambda error, _: errors.append(error))
    assert producer.flush(LIMIT_S) == 0
    return errors

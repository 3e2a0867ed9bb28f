"""Siltstone's broker beside a real Kafka: ``python -m bench.broker`` (``make bench-broker``)."""

"""Siltstone's cleaner beside Kafka's own on twin directories, on one machine: ``make bench-kafka``."""

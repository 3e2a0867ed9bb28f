"""The record format against its plain-Python twin and against what a real Kafka reader saw."""

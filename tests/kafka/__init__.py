"""Tests against a real Kafka broker from Maven (`make test-kafka`); they need Java 17+ and mvn."""

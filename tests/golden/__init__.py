"""What a real Kafka broker wrote and cleaned, compared with what Siltstone makes of it."""

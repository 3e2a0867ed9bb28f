"""Kafka's requests and answers as bytes: headers, messages, and the codec between the two. Pure."""

"""The messages of Kafka's protocol, a module for each API. Made by ``scripts/wire_messages.py``."""

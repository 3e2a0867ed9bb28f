"""Kafka's requests and responses: the classes of their messages, and the codec to and from bytes. Pure: it
opens no file and no socket."""

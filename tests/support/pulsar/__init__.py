"""Pulsar's own administration client, from Maven, against our paths of Pulsar's REST API."""

"""Spark's own Kafka source beside ours: the same records, from a real broker on the same machine.

``environment``: a Python and jars of its own, since the newest connector on Maven may be for an older Spark
than ours. ``serving``: a broker with a copy of a generated log. ``query``: what is measured, in that
environment and without this project. ``querying``: all of it.
"""

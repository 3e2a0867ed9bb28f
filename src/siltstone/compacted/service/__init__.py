"""Compaction beside the originals inside a ``LogManager``: when, by whom, with what outcome.

``thresholds`` and ``backlog`` say when, ``status`` keeps what came of it, ``compactions`` carries it out,
``gauges`` shows it.
"""

"""Siltstone: a Kafka-format commit log for Python whose log cleaner runs on Spark.

Importing the package loads no Spark, no server and no web code. The rooms, from the bottom up:
``records`` (bytes and columns), ``log`` (a partition directory), ``cleaner`` (what to clean and how),
``spark`` (how the work is spread), ``app`` (the wiring) and ``cli``.
"""

from __future__ import annotations

__version__ = "0.1.0"

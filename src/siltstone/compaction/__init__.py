"""Compaction of logs: ``inplace`` is Kafka's log cleaner, ``ledger`` is Pulsar's compaction beside the log.
The modules here are shared: what a task gets and how it reads a log (``work``), keys, the rewrite of segments
and its staged files, engines, reports; ``explain`` and ``latest`` only read."""

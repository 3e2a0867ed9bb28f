"""Compaction of logs: ``inplace`` is Kafka's log cleaner, ``ledger`` is Pulsar's compaction beside the log.
Both use ``work`` (what a task gets, and how it reads a log), ``keys`` and ``report``. Most other modules
carry out the tasks of compaction in place: ``engine``, ``broadcast``, ``rewrite``, ``staging``,
``assembling``, ``putting``. ``history`` and ``savings`` keep its results in the log directory. ``explain``
(with ``statistics``) and ``latest`` only read."""

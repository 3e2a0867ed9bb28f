"""One broker that speaks Kafka's protocol over the log directories that ``siltstone serve`` has open.

::

    server ─ connection ─ dispatch ─ handlers ─ store ─► commands, LogManager
      sockets, limits       wire: bytes ◄─► messages

Only ``server``, ``connection`` and ``waiting`` know the event loop; ``wire`` is pure.
"""

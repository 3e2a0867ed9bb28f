"""Compaction beside the originals (Pulsar's way): two phases that write a compacted ledger.

::

    the log's tail ─ extract ─► entries ─ by bucket ─► merge ─► winners ─ by group ─► rewrite ─► a generation
                                             ▲                                                       │
                     key indexes of the generations before it  ◄────── fold, when worth it ──────────┘

``compactor`` carries it out, ``engine`` is how the pieces are spread, ``work`` and ``staging``
are the pieces.
What lies on the disk afterwards, and how it is read, is ``siltstone.log.ledger``.
"""

"""Compacted ledgers beside a log's originals (Pulsar's compacted topics; seed 001).

::

    topic-0/.compacted/cursor.json      the ``__compaction`` cursor: horizon and ledger, replaced as one
                       ledger-5.json    manifest of ledger 5: which runs, up to where
                       ledger-5.hidden  which offsets of them later ones have superseded
                       generation-3/    ordinary segments with their original offsets, and ``keys``
                       run-<hex>/       the staged files of a compaction that goes on

The *horizon* is the first offset that the ledger does not cover. Below it readers see the ledger's records
that are not superseded, from it on the originals. A ledger never changes; a new one is complete and durable
before the cursor moves to it, and an old one goes once nobody reads it.
"""

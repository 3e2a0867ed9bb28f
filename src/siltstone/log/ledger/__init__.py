"""Compacted ledgers: a log's compacted view, in a folder of its partition directory.

::

    topic-0/.compacted/cursor.json      the ``__compaction`` cursor: the horizon and the current ledger's id
                       ledger-5.json    the manifest of ledger 5: its runs, and the horizon
                       ledger-5.hidden  the offsets in its runs that later runs have superseded
                       generation-3/    run 3: segments with the original offsets, and the key index ``keys``
                       run-<hex>/       staging of a compaction in progress; the number is random, of no run

A *run* is a part of a ledger that one compaction wrote, and several ledgers may share it. The *horizon* is
the first offset that the ledger does not cover. Below the horizon a reader gets the ledger's records that are
not superseded, from the horizon on those of the log itself. A ledger never changes: a compaction writes a new
one, complete and durable, and then moves the cursor to it. The old one is deleted once no reader has it open.
"""

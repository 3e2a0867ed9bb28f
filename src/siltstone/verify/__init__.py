"""An independent check of a cleaning: compares a log after it (AFTER) with the same log before it (BEFORE).

This package does not import the cleaner (import-linter checks that). It does not clean BEFORE again either:
it checks rules that must hold between the two directories. It shares scanning and decoding with all other
packages (``base.records``, ``log``), but compares keys by a hash function of its own.

::

    BEFORE, AFTER ─ pair_of ─► LogPair, cut into spans: one for each segment of AFTER
    a span  ─ check_span ───► problems · the outcome of each marker · an entry for each record with a key
    entries ─ check_bucket ─► problems: records that are lost, or that should have been discarded
    all     ─ verify ───────► LogVerdict: adds the transactions over all spans, .txnindex files, other files

Three words are this package's own: a *span* is a range of offsets (``pairs``), an *entry* a row about a
record with a key (``keys``), an *outcome* what became of a record or a batch. In names of variables, ``old``
stands for BEFORE and ``new`` for AFTER.
"""

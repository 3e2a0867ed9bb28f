"""An independent check of a cleaning: a log before, the same log after, and what the rules say of the two.

Nothing here knows how the cleaner works: it may not import it (a contract of import-linter), and it decides
by what must be true of two directories, not by doing the work again. Scanning and decoding are shared with
everybody (``base.records``, ``log``); keys are compared by a hash of its own.

::

    BEFORE, AFTER ─ pair_of ─► LogPair, a span for each segment of AFTER
    a span  ─ check_span ───► problems · what became of each marker · an entry for each record with a key
    entries ─ check_bucket ─► problems: what is lost, what should have gone
    all     ─ verify ───────► LogVerdict: transactions over all spans, indexes of aborted ones, files
"""

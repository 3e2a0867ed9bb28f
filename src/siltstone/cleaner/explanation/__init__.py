"""What a cleaning would do and why, log by log, without doing it.

The counts by reason and the sizes are those of the cleaner's own dry run. A pass of its own sees what that
does not keep: how often each key was written, what records weigh, since when they could be done without.

::

    segments ─ observe ─► entries by bucket, Observed      (``observing``; as the cleaner's extraction)
    a bucket ─ tally   ─► KeyTally                         (``tallying``)
    all      ─ explain ─► LogExplanation                   (``explaining``, ``model``)
"""

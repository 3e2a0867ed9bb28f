"""Bytes and columns: Kafka's record format, pure.

No file is opened here and no clock is read, so that the same functions run in recovery, in the
cleaner's Spark tasks, in the dump tool and in tests. ``scan`` finds the batches, ``columns`` decodes
their records, ``build`` makes new batches, ``codecs`` and ``checksum`` are what the three share.
``convert`` makes message sets into batches, ``fetch_results`` frames a chunk of the log for a reader.
"""

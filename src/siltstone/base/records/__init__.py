"""Kafka's record format, from bytes to columns and back; pure.

No file is opened here and no clock is read, so that the same functions run in recovery, in the cleaner's
Spark tasks, in the dump tool and in tests. ``scan`` finds the batches, ``decompression`` cuts them into
slices and decompresses them, ``decode`` makes columns of their records (``legacy`` has the kernels for
message sets), ``build`` makes new batches. ``codecs`` and ``checksum`` serve all of them. ``check`` validates
batches before an append, ``control`` has transaction markers, ``convert`` makes message sets into batches,
``fetch_results`` frames a chunk of the log for a reader. ``hashing`` and ``matching`` work on keys,
``metadata`` reads records of KRaft. ``kernel`` and ``compiling`` say how numba compiles all this.
"""

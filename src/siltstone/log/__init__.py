"""Batch, segment, log: everything that Kafka keeps in a log directory.

``names`` tells which files are what, ``checkpoints`` and ``metadata`` read and write the small text
files, ``indexes`` and ``snapshots`` the binary ones, ``segments`` lists and reads a partition's
segments, ``replacement`` swaps new segments for old ones and finishes what a crash interrupted,
``directory`` holds a log directory's lock and finds its partitions.
"""

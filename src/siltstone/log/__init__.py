"""The files of a log directory, and one open log.

``names`` has the names of all files, ``checkpoints`` reads and writes the text files, ``indexes`` the indexes
and ``producers`` the snapshots. ``directory`` holds a log directory's lock and finds its partitions,
``segments`` lists and reads a partition's segments, ``replacement`` swaps new segments in for old ones and
finishes what a crash interrupted. ``partition`` is a log that is open for appends, ``read_only`` one that is
only read.
"""

"""The files of a log directory, and one open log.

``names`` has the names of all files, ``checkpoints`` reads and writes the text files, ``indexes`` the indexes
and ``producers`` the snapshots. ``directory`` holds a log directory's lock and finds its partitions,
``segments`` lists and reads a partition's segments, ``replacement`` swaps new segments in for old ones and
finishes what a crash interrupted, ``recovery`` makes a partition consistent at startup. ``partition`` is a
log that is open for appends, ``read_only`` a log that is only read; ``fetch``, ``reading`` and ``following``
read both. ``ledger`` has the compacted ledgers. ``tiered`` finds the remote segments of a log: ``base.files``
asks it when a directory with a remote storage is listed.
"""

from __future__ import annotations

import importlib

from siltstone.base.files import joined


def _find_joined(place: joined.JoinedPlace) -> joined.JoinedFiles:
    """Call ``joining.find``, which is imported at the first call, since it imports most of this package."""
    joined_files: joined.JoinedFiles = importlib.import_module("siltstone.log.tiered.joining").find(place)
    return joined_files


joined.find_with(_find_joined)

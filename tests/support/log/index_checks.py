"""Do a directory's indexes fit its logs, entry by entry?

Where Kafka puts an entry depends on when a log was opened and cut; what an entry says does not. Every one of
them is held to the log's own batches.
"""

from __future__ import annotations

from pathlib import Path

from siltstone.log.indexes import read_entries
from tests.support.cleaning import logs


def check_indexes(directory: Path) -> None:
    """Every index of a log that was closed in order, or recovered."""
    for path in sorted(directory.glob("*.log")):
        base, position, places, newest = int(path.stem), 0, {}, (-1, -1)
        times = {}
        for header, raw in logs.headers_of(path.read_bytes()):
            places[position] = header.last_offset - base
            if header.max_timestamp > newest[0]:
                newest = (header.max_timestamp, header.last_offset - base)
                times[newest[0]] = newest[1]
            position += len(raw)
        index = path.with_suffix(".index")
        for offset, place in read_entries(index.read_bytes(), "index", str(index)).tolist():
            assert places.get(place) == offset, (index, offset, place)
        index = path.with_suffix(".timeindex")
        entries = read_entries(index.read_bytes(), "timeindex", str(index)).tolist()
        for time, offset in entries:
            assert times.get(time) == offset, (index, time, offset)
        assert (entries[-1] if entries else (-1, -1)) == newest, (index, entries, newest)

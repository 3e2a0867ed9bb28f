"""Reading back what a task writes, while it writes: a staged segment is checked some way behind its end.

The bytes come from the file, as any reader gets them; those that were checked and are on disk need no memory
of the system's any more (``files.Writer.let_go``), so that a cleaning of any size takes the place of few
pages that others want.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from siltstone import files
from siltstone.cleaner.judging import Offsets, meet_winners
from siltstone.cleaner.work import Group, LogWork, refuse_disorder
from siltstone.errors import CheckFailedError
from siltstone.log.indexes import IndexBuilder
from siltstone.log.segments import Window, windows
from siltstone.records.codecs import Scratch
from siltstone.records.decode import decode_record_keys
from siltstone.records.layout import CONTROL_BIT
from siltstone.records.pieces import pieces

_WRONG = ("an offset is there twice or out of order", "a record is there that is no winner")


class ReadBack:
    """Scans one group's staged segment: checksums, order, offsets among the winners, none twice.

    ``winners`` gives the offsets that won up to now, less the group's base, ascending. ``size``: bytes that
    were read so far, whole batches. Raises CheckFailedError and CorruptFileError for what is not as it should
    be, OSError.
    """

    def __init__(
        self, work: LogWork, group: Group, path: str, winners: Callable[[], Offsets], scratch: Scratch
    ) -> None:
        self._work, self._group, self._path, self._winners = work, group, path, winners
        self._again = IndexBuilder(group.base_offset, work.index_interval, work.index_bytes)
        self._scratch = scratch
        self._following, self._last, self._met = group.base_offset, group.base_offset - 1, 0
        self.size = self.kept = 0

    def follow(self, size: int) -> int:
        """Read on up to byte ``size``, where a batch ends; returns the bytes."""
        before, winners = self.size, self._winners()
        with files.Reader(self._path) as reader:
            for window in windows(reader, start=before, size=size, window_size=self._work.window_size):
                self._scan(window, winners)
        self.size = size
        return size - before

    def _scan(self, window: Window, winners: Offsets) -> None:
        path, base, limit = self._path, self._group.base_offset, self._work.batch_limit
        self._following = refuse_disorder(path, window, self._following, self._group.end_offset)
        self._again.add_directory(window.batches)
        for part in pieces(window.data, window.batches):
            batches = window.batches[part]
            columns = decode_record_keys(
                window.data, batches, self._scratch, limit=limit, path=path, origin=window.origin
            )
            control = (batches["attributes"] & CONTROL_BIT) != 0
            spans = (columns.offset, columns.batch, control, base, self._work.map_end)
            self._last, self._met, wrong = meet_winners(*spans, winners, self._last, self._met)
            if wrong:
                raise CheckFailedError(f"{path}: {_WRONG[wrong - 1]}")
            self.kept += len(columns)

    def finish(self, size: int, kept: int, staged: Mapping[str, bytes]) -> int:
        """All is written and synced: is it ``size`` bytes, ``kept`` records, and what ``staged`` indexes?

        ``staged``: the indexes that were written, by kind; offset and time index were built again. Returns
        the bytes that were read.
        """
        found = files.stat(self._path).size
        if found != size:
            raise CheckFailedError(f"{self._path}: {found} bytes on disk, but {size} were written")
        done = self.follow(size)
        if self.kept != kept:
            raise CheckFailedError(f"{self._path}: {self.kept} records on disk, but {kept} were kept")
        built = self._again.finish()
        if (built.offset_index, built.time_index) != (staged["index"], staged["timeindex"]):
            raise CheckFailedError(f"{self._path}: its indexes are not those of what was written")
        return done

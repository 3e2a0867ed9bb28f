"""An index that grows with its segment: entries are looked up while new ones are added.

Entries lie in the file, the newest ones in memory until ``save``. A lookup takes no lock: what is in memory
and how much is in the file are one tuple, replaced at once. In the file it is a binary search by reads of one
entry, so that an open log keeps no index in memory, however many segments it has.
"""

from __future__ import annotations

import bisect
import threading
from pathlib import Path

from siltstone import files
from siltstone.log.indexes import ENTRY_STRUCTS

Entry = tuple[int, int]
"""(relative offset, position) of an offset index; (timestamp in ms, relative offset) of a time index."""
_CUT_OFF = (1 << 62, 1 << 62)
"""What an older view of a segment reads where the file was cut off since: behind everything."""


class IndexFile:
    """``OffsetIndex`` or ``TimeIndex`` of one segment; ``size_limit`` is ``segment.index.bytes``.

    One thread adds, any may look up. The file must be sound: recovery sees to that. ``is_full``: no further
    entry fits.
    """

    __slots__ = ("_entry", "_limit", "_opening", "_path", "_reader", "_state", "_width", "is_full")

    def __init__(self, path: Path, kind: str, size: int, size_limit: int) -> None:
        self._entry = ENTRY_STRUCTS[kind]
        self._width = self._entry.size
        self._path = path
        self._limit = size_limit // self._width
        self._reader: files.Reader | None = None
        self._opening = threading.Lock()
        self._state: tuple[int, list[Entry]] = (size // self._width, [])
        self.is_full = len(self) >= self._limit

    def __len__(self) -> int:
        saved, new = self._state
        return saved + len(new)

    @property
    def size(self) -> int:
        """Bytes that all entries take."""
        return len(self) * self._width

    def last(self) -> Entry | None:
        """The newest entry. A file that nobody looks things up in is not kept open for it."""
        saved, new = self._state
        if new or not saved:
            return new[-1] if new else None
        if self._reader is not None:
            return self._read(saved - 1)
        with files.Reader(self._path) as reader:
            found = self._entry_at(reader, saved - 1)
        # Who renames the file holds it first: what has been read may be that of another file of the same
        # name.
        return found if self._reader is None else self._read(saved - 1)

    def floor(self, key: int) -> Entry | None:
        """The last entry whose first number is at or below ``key``."""
        number, state = self._search(key + 1, 0)
        return self._at(number - 1, state) if number else None

    def first_at(self, value: int) -> Entry | None:
        """The first entry whose second number is at or above ``value``."""
        number, state = self._search(value, 1)
        return self._at(number, state) if number < state[0] + len(state[1]) else None

    def _search(self, value: int, column: int) -> tuple[int, tuple[int, list[Entry]]]:
        """How many entries have less than ``value`` in a column, and the state in which that is so."""
        state = self._state
        saved, new = state
        if new and new[0][column] < value:
            return saved + bisect.bisect_left(new, value, key=lambda entry: entry[column]), state
        low, high = 0, saved
        while low < high:
            middle = (low + high) // 2
            if self._read(middle)[column] < value:
                low = middle + 1
            else:
                high = middle
        return low, state

    def _at(self, number: int, state: tuple[int, list[Entry]]) -> Entry:
        saved, new = state
        return self._read(number) if number < saved else new[number - saved]

    def hold(self) -> None:
        """Open the file, so that lookups go on when it is renamed or unlinked."""
        if self._reader is None:
            with self._opening:
                if self._reader is None:
                    self._reader = files.Reader(self._path)

    def _read(self, number: int) -> Entry:
        self.hold()
        assert self._reader is not None
        return self._entry_at(self._reader, number)

    def _entry_at(self, reader: files.Reader, number: int) -> Entry:
        raw = reader.read(number * self._width, self._width)
        if len(raw) < self._width:
            return _CUT_OFF
        first, second = self._entry.unpack(raw)
        return first, second

    def add(self, first: int, second: int) -> None:
        """A new entry, behind the last one."""
        self._state[1].append((first, second))
        self.is_full = len(self) >= self._limit

    def save(self) -> bool:
        """Write new entries to the file; were there any? Raises OSError."""
        saved, new = self._state
        if not new:
            return False
        appender = files.Appender(self._path, saved * self._width)
        try:
            appender.write(b"".join(self._entry.pack(*entry) for entry in new))
            self._state = (saved + len(new), [])
        finally:
            appender.close()
        return True

    def sync(self) -> None:
        """Make what was saved durable. Raises OSError."""
        files.sync_file(self._path)

    def cut(self, *, below: int, column: int) -> None:
        """Keep only entries whose number in ``column`` (0 or 1) is below ``below``. Raises OSError."""
        saved, new = self._state
        kept = [entry for entry in new if entry[column] < below]
        while saved and self._read(saved - 1)[column] >= below:
            saved -= 1
        appender = files.Appender(self._path)
        try:
            if appender.size != saved * self._width:
                appender.truncate(saved * self._width)
        finally:
            appender.close()
        self._state = (saved, kept)
        self.is_full = len(self) >= self._limit

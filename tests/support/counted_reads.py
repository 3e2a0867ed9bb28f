"""How many bytes of files are read."""

from __future__ import annotations

import pytest

from siltstone.base import files
from siltstone.base.records.layout import Bytes


class CountedReads:
    """Counts the bytes that are read from files, from its making to the end of the test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.total = 0
        read, read_into = files.Reader.read, files.Reader.read_into

        def counted_read(reader: files.Reader, position: int, size: int) -> bytes:
            content = read(reader, position, size)
            self.total += len(content)
            return content

        def counted_read_into(reader: files.Reader, buffer: Bytes, position: int) -> int:
            size = read_into(reader, buffer, position)
            self.total += size
            return size

        patch.setattr(files.Reader, "read", counted_read)
        patch.setattr(files.Reader, "read_into", counted_read_into)

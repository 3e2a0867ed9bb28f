"""The files of an Iceberg table in a store, as pyiceberg reads and writes them: manifests and their lists.

They go through ``base.files``, as everything else in a store, with its credentials and checks, and are put as
a whole, each under a new name. A file whose writing fails is not put.
"""

from __future__ import annotations

import errno
import io
from types import TracebackType

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from siltstone.base import files


class StoreFiles(FileIO):
    """Objects by their URLs."""

    def new_input(self, location: str) -> InputFile:
        """An object to read."""
        return _Stored(location)

    def new_output(self, location: str) -> OutputFile:
        """An object to put."""
        return _Stored(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove an object."""
        name = location if isinstance(location, str) else location.location
        files.delete_objects([name])


class _Stored(InputFile, OutputFile):
    """One object, to be read or put."""

    def __len__(self) -> int:
        return files.stat(self.location).size

    def exists(self) -> bool:
        """Is it there?"""
        return files.exists(self.location)

    def open(self, seekable: bool = True) -> InputStream:
        """Its bytes, all of them. Raises OSError."""
        return io.BytesIO(files.read_bytes(self.location))

    def to_input_file(self) -> InputFile:
        """Itself."""
        return self

    def create(self, overwrite: bool = False) -> OutputStream:
        """A stream of the bytes to put."""
        return _Upload(self.location)


class _Upload(io.BytesIO):
    """The bytes of an object: put when the stream is closed, unless an error ended its block."""

    def __init__(self, location: str) -> None:
        super().__init__()
        self._location: str | None = location

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._location = None
        self.close()

    def close(self) -> None:
        """Put the bytes. Raises OSError."""
        location, self._location = self._location, None
        if location is not None and not files.put_own(location, self.getvalue()):
            raise FileExistsError(errno.EEXIST, "another writer has put an object of this name", location)
        super().close()

    def __del__(self) -> None:
        # The destructor of other streams calls ``close``, which here would put an incomplete object.
        self._location = None

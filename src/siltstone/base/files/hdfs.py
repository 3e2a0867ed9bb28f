"""HDFS as an object store: the calls of obstore that ``base.files.objects`` makes, through ``hdfs-native``.

::

    KEY     hdfs://NAMENODE:PORT/KEY; a directory is a prefix; without files in it, it is not seen
    ETag    modification time and length, in which a new file of that name differs
    put     to a file .siltstone-put-HEX-NAME beside KEY, then a rename: so a KEY is always whole

A rename that fails where there is a KEY is one step of the NameNode: it takes the place of the condition
(``If-None-Match``) that other stores have for a put. ``base.files.objects`` alone may call this.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, Any

_HIDDEN = ".siltstone-put-"
"""What the names of files that are still being written begin with; listings leave them out."""
_WRITE_BYTES = 4 << 20
RETRIES = {"dfs.client.failover.max.attempts": "10", "dfs.client.failover.sleep.max.millis": "6000"}
"""A NameNode that does not answer is tried for about a minute, as other stores are; Hadoop tries for
three."""


class PreconditionError(Exception):
    """The file is not the one that was opened. The caller recognises obstore's error by its name, which this
    one has, too."""


class _GetResult:
    """What ``HdfsStore.get`` returns, as obstore's result: ``meta`` of the whole file, and ``bytes()``."""

    def __init__(self, meta: Mapping[str, Any], data: bytes) -> None:
        self.meta, self._data = meta, data

    def bytes(self) -> bytes:
        """The bytes of the range."""
        return self._data


class HdfsStore:
    """The files of a name service. Raises what ``hdfs_native`` raises, and PreconditionError."""

    def __init__(self, url: str) -> None:
        try:
            self._native = importlib.import_module("hdfs_native")
        except ImportError as error:
            reason = "reading HDFS needs hdfs-native: pip install 'siltstone[hdfs]'"
            raise OSError(errno.ENOSYS, reason, url) from error
        self._client = self._native.Client(url, RETRIES)

    def head(self, key: str) -> dict[str, Any]:
        """A file's size, time and ETag."""
        status = self._client.get_file_info(f"/{key}")
        if status.isdir:
            raise FileNotFoundError(key)
        return _meta(status)

    def get(self, key: str, options: Mapping[str, Any] | None = None) -> _GetResult:
        """Read the ``range`` of a file. Raises PreconditionError if its ETag is not ``if_match``, or if the
        file was replaced while it was read."""
        options = options or {}
        meta = self.head(key)
        if options.get("if_match", meta["e_tag"]) != meta["e_tag"]:
            raise PreconditionError(key)
        start, end = options.get("range", (0, meta["size"]))
        reader = self._client.read(f"/{key}")
        length = min(end, len(reader)) - start  # hdfs-native panics past the end
        data = reader.read_range(start, length) if length > 0 else b""
        if self.head(key)["e_tag"] != meta["e_tag"]:
            raise PreconditionError(key)
        return _GetResult(meta, data)

    def put(self, key: str, data: bytes | IO[bytes], *, mode: str = "overwrite", **_: Any) -> dict[str, Any]:
        """Write a file, which appears as a whole; ``mode="create"`` raises FileExistsError if it exists."""
        above, slash, name = f"/{key}".rpartition("/")
        staged = f"{above}{slash}{_HIDDEN}{secrets.token_hex(8)}-{name}"
        options = self._native.WriteOptions(create_parent=True, overwrite=False)
        try:
            with self._client.create(staged, options) as writer:
                for chunk in (
                    [data] if isinstance(data, bytes) else iter(lambda: data.read(_WRITE_BYTES), b"")
                ):
                    writer.write(chunk)
            self._client.rename(staged, f"/{key}", mode != "create")
        except BaseException:
            with contextlib.suppress(Exception):  # the first error says what went wrong
                self._client.delete(staged, False)
            raise
        return {"e_tag": None}  # no checksum, so the caller reads the file back

    def copy(self, source: str, target: str) -> None:
        """Copy a file through this machine: HDFS has no copy of its own."""
        self.put(target, self.get(source).bytes())

    def delete(self, keys: Sequence[str] | str) -> None:
        """Delete files; a missing one is no error."""
        for name in [keys] if isinstance(keys, str) else keys:
            self._client.delete(f"/{name}", False)

    def list(self, prefix: str | None = None, chunk_size: int = 1_000) -> Iterator[list[dict[str, Any]]]:
        """All files below a directory, however deep, in lists as obstore's: here of one file each."""
        for status in self._statuses(prefix, recursive=True):
            if not status.isdir:
                yield [_meta(status)]

    def list_with_delimiter(self, prefix: str | None = None) -> dict[str, Any]:
        """The files and directories of a directory."""
        statuses = list(self._statuses(prefix, recursive=False))
        return {
            "objects": [_meta(status) for status in statuses if not status.isdir],
            "common_prefixes": [status.path.strip("/") for status in statuses if status.isdir],
        }

    def _statuses(self, prefix: str | None, *, recursive: bool) -> Iterator[Any]:
        path = f"/{prefix or ''}".rstrip("/") or "/"
        try:
            for status in self._client.list_status(path, recursive):
                if not status.path.rpartition("/")[2].startswith(_HIDDEN) and status.path != path:
                    yield status
        except FileNotFoundError:
            return


def _meta(status: Any) -> dict[str, Any]:
    """A file's status as obstore gives that of an object."""
    return {
        "path": status.path.strip("/"),
        "size": status.length,
        "last_modified": datetime.fromtimestamp(status.modification_time / 1000, UTC),
        "e_tag": f'"{status.modification_time}-{status.length}"',
    }

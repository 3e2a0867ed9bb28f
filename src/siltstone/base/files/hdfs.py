"""HDFS with the few calls of an obstore store that ``base.files.objects`` makes, through ``hdfs-native``.

::

    KEY     hdfs://NAMENODE:PORT/KEY; a directory is a prefix, and one without files is not seen
    ETag    modification time and length, which another file of that name has otherwise
    put     to .siltstone-put-HEX-KEY, then a rename that fails where there is a KEY: whole, or not at all

A rename that does not overwrite is one step of the NameNode's: it is the condition (``If-None-Match``) that
other stores have. ``base.files.objects`` alone may call this.
"""

from __future__ import annotations

import errno
import importlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, Any

_HIDDEN = ".siltstone-put-"
"""In the names of files that are not whole yet; no list has them."""
_PIECE_BYTES = 4 << 20
RETRIES = {"dfs.client.failover.max.attempts": "10", "dfs.client.failover.sleep.max.millis": "6000"}
"""A NameNode that does not answer is asked for about a minute, as other stores are; Hadoop asks for three."""


class PreconditionError(Exception):
    """The file is not the one that was opened; of the name that obstore's has."""


class _Answer:
    def __init__(self, meta: Mapping[str, Any], data: bytes) -> None:
        self.meta, self._data = meta, data

    def bytes(self) -> bytes:
        """What was asked for."""
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

    def get(self, key: str, options: Mapping[str, Any] | None = None) -> _Answer:
        """Bytes of one file, which is the same before and after they are read."""
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
        return _Answer(meta, data)

    def put(self, key: str, data: bytes | IO[bytes], *, mode: str = "overwrite", **_: Any) -> dict[str, Any]:
        """A file as a whole; ``mode="create"`` raises FileExistsError if there is one."""
        above, slash, name = f"/{key}".rpartition("/")
        staged = f"{above}{slash}{_HIDDEN}{secrets.token_hex(8)}-{name}"
        how = self._native.WriteOptions(create_parent=True, overwrite=False)
        try:
            with self._client.create(staged, how) as writer:
                for piece in (
                    [data] if isinstance(data, bytes) else iter(lambda: data.read(_PIECE_BYTES), b"")
                ):
                    writer.write(piece)
            self._client.rename(staged, f"/{key}", mode != "create")
        except BaseException:
            self._client.delete(staged, False)
            raise
        return {"e_tag": None}

    def copy(self, source: str, target: str) -> None:
        """A copy, which passes through this machine: HDFS copies nothing itself."""
        self.put(target, self.get(source).bytes())

    def delete(self, keys: Sequence[str] | str) -> None:
        """Delete files; those that are not there are none."""
        for name in [keys] if isinstance(keys, str) else keys:
            self._client.delete(f"/{name}", False)

    def list(self, prefix: str | None = None, chunk_size: int = 1_000) -> Iterator[list[dict[str, Any]]]:
        """All files below a directory, however deep."""
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
    return {
        "path": status.path.strip("/"),
        "size": status.length,
        "last_modified": datetime.fromtimestamp(status.modification_time / 1000, UTC),
        "e_tag": f'"{status.modification_time}-{status.length}"',
    }

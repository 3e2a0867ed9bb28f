"""Objects of a store, which are read as files are, and written as a whole: ``s3://bucket/key``, ``gs://``,
``abfs://``, ``az://``, and files of ``hdfs://namenode:port/key`` as such objects (``base.files.hdfs``).

::

    path          s3://bucket/broker-1/users-0/00000000000000000000.log      (Path writes s3:/bucket/…,
                                                                             StorePath both slashes)
    directory     all keys that begin with its key and a slash; it has no time, owner or lock
    identity      (number from the ETag, size, time), as (inode, size, time) of a local file

A reader begins with one request for the status and the first bytes. A small object is fetched as a whole. Of
a large one, sequential reads fetch ``WINDOW_BYTES`` at a time, and the next window in another thread while
the caller uses this one; a read at another position fetches only the bytes that it needs, and at least
``PIECE_BYTES``. Each request names the ETag that the object had when it was opened: if it was replaced in
between, the read fails, and never mixes the two.

The stores are accessed through ``obstore`` (``siltstone[objects]``). It retries a request that fails with a
transient error, for at most ``RETRY_SECONDS`` and the ``REQUEST_SECONDS`` of the last try. Calls that it does
not retry when their connection breaks are tried ``BROKEN_TRIES`` times here. Credentials and endpoints come
from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS``,
``AZURE_STORAGE_ACCOUNT_NAME``, …) and from ``configure``; no error, ``repr`` or log has their values.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path, PosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np

from siltstone.base.errors import UsageError, with_both_slashes
from siltstone.base.files.hdfs import HdfsStore

WINDOW_BYTES = 16 << 20
"""Bytes of one request of sequential reads."""
SMALL_BYTES = 1 << 20
"""An object up to this size is fetched as a whole: indexes, checkpoints, snapshots."""
PIECE_BYTES = 64 << 10
"""The fewest bytes that any other read of a large object requests, such as that of a batch that an index
points to."""
REQUEST_SECONDS, CONNECT_SECONDS = 60.0, 10.0
"""How long a request may take until its response is there; how long its connection may take."""
RETRIES, RETRY_SECONDS = 10, 60.0
"""How often a request that fails with a transient error is retried, and until how long after its start."""
BROKEN_TRIES = 3
"""How often a listing or a put is tried if its connection breaks."""
_Result = TypeVar("_Result")
_ADDRESS = re.compile(
    r"(?P<scheme>s3|s3a|gs|abfs|abfss|az|hdfs):/+(?P<bucket>[^/]+)(?:/+(?P<key>.*))?\Z", re.DOTALL
)
_STORE_SCHEME = {"s3a": "s3"}
"""obstore's name for a scheme, where that is another one."""
_options: dict[str, str] = {}
"""The options of ``configure``."""
when_forgotten: list[Callable[[], None]] = []
"""These functions are called when the options change, to forget what was read with the old ones."""
_PREFIXES = {"s3": "aws_", "gs": "google_", "abfs": "azure_", "abfss": "azure_", "az": "azure_"}
"""What the names of a store's options begin with."""
_AZURE_ENDPOINT = "azure_storage_endpoint", "AZURE_STORAGE_ENDPOINT"
_ENDPOINTS = {
    "s3": ("aws_endpoint", "AWS_ENDPOINT_URL"),
    "gs": ("google_base_url", "GOOGLE_BASE_URL"),
    "abfs": _AZURE_ENDPOINT,
    "abfss": _AZURE_ENDPOINT,
    "az": _AZURE_ENDPOINT,
}
"""The option and the variable of the environment that have a store's endpoint. If it begins with ``http://``,
``allow_http`` need not be set as well."""
_ALLOW_HTTP = "allow_http"
_ACCESS_KEY, _SESSION_TOKENS = "aws_access_key_id", ("aws_session_token", "aws_token")
"""Options of S3; the latter are names of one option, which belongs to its access key."""


class ObjectStatus(NamedTuple):
    """An object: ``size`` in bytes; ``modified_ns``, rounded down to whole seconds if it has an ETag, else to
    milliseconds; ``etag`` as the store gives it, None if it gives none."""

    size: int
    modified_ns: int
    etag: str | None

    @property
    def number(self) -> int:
        """A number of 63 bits in place of an inode: an object with another ETag has another number."""
        # Azure's listings have ETags without the quotes that its responses for one object have.
        text = (self.etag or f"{self.size} {self.modified_ns}").strip('"')
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class Place(NamedTuple):
    """Where an object is. ``key``: without slashes at its ends, "" for the bucket itself."""

    scheme: str
    bucket: str
    key: str

    @property
    def prefix(self) -> str:
        """What the keys of a directory begin with."""
        return f"{self.key}/" if self.key else ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"


class StorePath(PosixPath):
    """A path of a store that is written with both slashes after its scheme, which pathlib makes one. Equal to
    the same path as a ``Path``."""

    def __str__(self) -> str:
        return with_both_slashes(super().__str__())

    def __fspath__(self) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Path) and Path(str(self)) == Path(str(other))

    def __hash__(self) -> int:
        return hash(Path(str(self)))


def as_named(path: Path) -> Path:
    """The path, as a ``StorePath`` if it is one of a store."""
    return StorePath(path) if is_object(path) and not isinstance(path, StorePath) else path


def is_object(path: str | os.PathLike[str] | int) -> bool:
    """Is it a path of a store? A local path that looks like one has to be written ``./s3:/…``."""
    text = path if isinstance(path, (str, int)) else os.fspath(path)
    return isinstance(text, str) and text[:1] != "/" and _ADDRESS.match(text) is not None


def place_of(path: str | os.PathLike[str]) -> Place:
    """The place of a path for which ``is_object`` holds."""
    address = _ADDRESS.match(os.fspath(path))
    assert address is not None, path
    return Place(address["scheme"], address["bucket"], (address["key"] or "").strip("/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options of stores, by obstore's names; its ``repr`` has none of them."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)


def configure(options: Mapping[str, str]) -> None:
    """Use these options of the stores (``aws_endpoint``, ``aws_access_key_id``, …) from now on, before those
    of the environment. Another access key without a session token drops the token of the former one, which
    the store would refuse beside it. They are never written anywhere. Raises UsageError, which has no value
    of them."""
    lowered = {name.lower(): value for name, value in options.items()}
    for name, value in lowered.items():
        if name != _ALLOW_HTTP and not name.startswith(tuple(_PREFIXES.values())):
            reason = "an option of object stores has a name that none of them knows"
            raise UsageError(reason, advice=f"names begin with aws_, google_ or azure_, or are {_ALLOW_HTTP}")
        if not value.isprintable():  # obstore panics, since no header may have it
            reason = f"the option {name} of object stores has a control character"
            raise UsageError(reason, advice="pass the value without line breaks and the like")
    if any(_options.get(name) != value for name, value in lowered.items()):
        former = _options.get(_ACCESS_KEY)
        if former is not None and lowered.get(_ACCESS_KEY, former) != former:
            for name in _SESSION_TOKENS:
                _options.pop(name, None)
        _options.update(lowered)
        _forget_stores()


def configured() -> StoreOptions:
    """The options of ``configure``, for the workers of a job."""
    return StoreOptions(values=dict(_options))


def forget_options() -> None:
    """Remove all options of ``configure``."""
    _options.clear()
    _forget_stores()


def _forget_stores() -> None:
    _store.cache_clear()
    for forget in when_forgotten:
        forget()


@cache
def _store(scheme: str, bucket: str, process: int) -> Any:
    """The store of a bucket. Its threads do not survive a fork, so ``process``, the id of this process, is a
    part of the cache's key."""
    try:
        stores = importlib.import_module("obstore.store")
    except ImportError as error:
        reason = "reading objects needs obstore: pip install 'siltstone[objects]'"
        raise OSError(errno.ENOSYS, reason, f"{scheme}://{bucket}") from error
    if scheme == "hdfs":
        return HdfsStore(f"{scheme}://{bucket}")
    scheme = _STORE_SCHEME.get(scheme, scheme)
    config, client = _config_and_client(scheme)
    retries = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
    url = f"{scheme}://{bucket}"
    with _as_os_error(url):
        return stores.from_url(url, config=config, client_options=client, retry_config=retries)


def _config_and_client(scheme: str) -> tuple[dict[str, str], dict[str, str]]:
    """(options of the stores of a scheme that were configured, options of their HTTP client)."""
    client = {"timeout": f"{REQUEST_SECONDS:g}s", "connect_timeout": f"{CONNECT_SECONDS:g}s"}
    option, variable = _ENDPOINTS[scheme]
    endpoint = _options.get(option) or os.environ.get(variable) or ""
    if endpoint.startswith("http://") or os.environ.get("AWS_ALLOW_HTTP") or _options.get(_ALLOW_HTTP):
        client["allow_http"] = "true"
    return {name: value for name, value in _options.items() if name.startswith(_PREFIXES[scheme])}, client


def options_for(path: str | os.PathLike[str]) -> dict[str, str]:
    """The options of a path's store for another library that is built on object_store, as obstore is, and
    that reads the environment, too; none for HDFS."""
    scheme = _STORE_SCHEME.get(place_of(path).scheme, place_of(path).scheme)
    if scheme not in _PREFIXES:
        return {}
    config, client = _config_and_client(scheme)
    return {**config, **client, "max_retries": str(RETRIES), "retry_timeout": f"{RETRY_SECONDS:g}s"}


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """The threads of this process that fetch the next windows. They do not survive a fork, so ``process``,
    its id, is a part of the cache's key."""
    return ThreadPoolExecutor(4, thread_name_prefix="siltstone-objects")


def _store_of(place: Place) -> Any:
    return _store(place.scheme, place.bucket, os.getpid())


@contextlib.contextmanager
def store_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise the errors of another library that accesses stores as an ``OSError`` of one line, which has no
    credentials."""
    with _as_os_error(str(place_of(path))):
        yield


@contextlib.contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Raise the errors of a store as an ``OSError`` of one line, which has no credentials."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileExistsError):  # obstore's AlreadyExistsError, which has no number
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        if error.errno is not None:
            raise
        if isinstance(error, FileNotFoundError):  # its NotFoundError, which has none either
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        # Without a number it may be any error: so deltalake raises all of its own, and hdfs-native that of a
        # NameNode that does not answer.
        number, reason = _reason_of(type(error).__name__, str(error))
        raise OSError(number, reason, path) from None
    except Exception as error:
        number, reason = _reason_of(type(error).__name__, str(error))
        raise OSError(number, reason, path) from None
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":  # a panic of obstore's, which is no Exception
            raise
        reason = "obstore cannot work with the settings of the store; check those of the environment"
        raise OSError(errno.EINVAL, reason, path) from None


def _reason_of(kind: str, text: str) -> tuple[int, str]:
    """(errno, reason) of an error of obstore's class ``kind`` with this ``text``, which says more: many
    errors are of the class ``GenericError``."""
    for phrases, number_and_reason in _REASONS.items():
        if any(phrase in text for phrase in phrases):
            return number_and_reason
    if kind in _ERRORS:
        return _ERRORS[kind]
    if text.startswith("Configuration key:"):
        return errno.EINVAL, f"the store has no such option: {text.partition(chr(10))[0]}"
    # The first line says the request and how often it was repeated, never its headers; its URL may have a
    # password.
    line = re.sub(r"//[^/@\s]*@", "//", text.partition("\n")[0][:300])
    # A connection that broke where obstore did not retry: ECONNABORTED makes ``_retried`` try again.
    is_broken = "HTTP error:" in line and ("performing PUT" in line or " retries" not in line)
    return errno.ECONNABORTED if is_broken else errno.EIO, f"the store failed: {line}"


_METADATA_SERVICE = "http://169.254.169.254/"
"""Where a virtual machine of a cloud gets credentials. It is asked last, so an error from there means that
there are none."""
# Phrases in obstore's text of an error, and (errno, reason) of the OSError. The first match counts.
_REASONS = {
    ("<Code>NoSuchBucket</Code>", "ContainerNotFound"): (errno.ENOENT, "the store has no such bucket"),
    ("<Code>InvalidAccessKeyId</Code>", "<Code>SignatureDoesNotMatch</Code>", " 401 Unauthorized"): (
        errno.EACCES,
        "the store does not accept the credentials",
    ),
    (_METADATA_SERVICE,): (
        errno.EACCES,
        "there are no credentials: neither in the environment nor as --storage-option",
    ),
    (" 403 Forbidden", "AccessControlException"): (errno.EACCES, "the store does not allow it"),
    (" 416 ",): (errno.ERANGE, "the object has no such bytes"),
}
# The same by the name of obstore's class of error, where no phrase matches.
_ERRORS = {
    "AlreadyExistsError": (errno.EEXIST, os.strerror(errno.EEXIST)),
    "NotFoundError": (errno.ENOENT, os.strerror(errno.ENOENT)),
    "PermissionDeniedError": (errno.EACCES, "the store does not allow it"),
    "UnauthenticatedError": (errno.EACCES, "the store does not accept the credentials"),
    "PreconditionError": (errno.ESTALE, "the object was replaced while it was read"),
    "NotModifiedError": (errno.ESTALE, "the object was replaced while it was read"),
}


def _retried(call: Callable[[], _Result]) -> _Result:
    """The result of ``call``, which is tried again if its connection breaks where obstore does not retry:
    within a listing, or in a put, which the store may have carried out. Raises OSError."""
    for _ in range(BROKEN_TRIES - 1):
        with contextlib.suppress(ConnectionAbortedError):
            return call()
    return call()


def _status(meta: Mapping[str, Any]) -> ObjectStatus:
    modified: datetime = meta["last_modified"]
    etag: str | None = meta.get("e_tag")
    # Google's listings have milliseconds; the header Last-Modified of the same object has only seconds.
    milliseconds = int(modified.timestamp()) * 1000 if etag else int(modified.timestamp() * 1000)
    return ObjectStatus(int(meta["size"]), milliseconds * 1_000_000, etag)


def head(path: str | os.PathLike[str]) -> ObjectStatus:
    """The status of an object. Raises FileNotFoundError, OSError."""
    place = place_of(path)
    with _as_os_error(str(place)):
        if not place.key:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
        return _status(_store_of(place).head(place.key))


def has_keys(path: str | os.PathLike[str]) -> bool:
    """Is it a directory: is there a key below it? Raises OSError."""
    place = place_of(path)

    def has_one() -> bool:
        with _as_os_error(str(place)):
            return any(map(bool, _store_of(place).list(place.prefix or None, chunk_size=1)))

    return _retried(has_one)


def list_keys(path: str | os.PathLike[str]) -> tuple[dict[str, ObjectStatus], list[str]]:
    """What is directly below a directory: (objects by name, names of directories). Raises FileNotFoundError
    for a directory with nothing below it, OSError."""
    place = place_of(path)

    def listed() -> Any:
        with _as_os_error(str(place)):
            return _store_of(place).list_with_delimiter(place.prefix or None)

    listing, skip = _retried(listed), len(place.prefix)
    objects = {str(row["path"])[skip:]: _status(row) for row in listing["objects"]}
    objects.pop("", None)  # the marker of an empty directory
    folders = [str(name).rstrip("/")[skip:] for name in listing["common_prefixes"]]
    if not objects and not folders:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
    return objects, folders


def read_whole(path: str | os.PathLike[str], limit: int | None = None) -> memoryview:
    """All bytes of an object, at most ``limit``. Raises OSError."""
    place = place_of(path)
    with _as_os_error(str(place)):
        response = _store_of(place).get(place.key)
        if limit is not None and response.meta["size"] > limit:
            response = _store_of(place).get(place.key, options={"range": (0, limit)})
        data = memoryview(response.bytes())
    _require_whole(data, response.meta["size"] if limit is None else min(response.meta["size"], limit), place)
    return data


def read_range(path: str | os.PathLike[str], start: int, end: int, size: int) -> memoryview:
    """The bytes from ``start`` to ``end`` of an object that has ``size`` bytes and is never written again.
    Raises OSError."""
    place = place_of(path)
    options = {} if (start, end) == (0, size) else {"options": {"range": (start, end)}}
    with _as_os_error(str(place)):
        response = _store_of(place).get(place.key, **options)
        data = memoryview(response.bytes())
    if response.meta["size"] != size:
        raise OSError(errno.EIO, f"it has {response.meta['size']} bytes instead of {size}", str(place))
    _require_whole(data, end - start, place)
    return data


def _require_whole(data: memoryview, size: int, place: Place) -> None:
    """Raise OSError for a response that is not whole."""
    if len(data) != size:
        raise OSError(errno.EIO, f"the store sent {len(data)} of {size} bytes", str(place))


def _first_piece(place: Place) -> tuple[ObjectStatus, memoryview]:
    """The status of an object and its first ``PIECE_BYTES``, in one request; an empty object takes two."""
    try:
        with _as_os_error(str(place)):
            response = _store_of(place).get(place.key, options={"range": (0, PIECE_BYTES)})
            status, data = _status(response.meta), memoryview(response.bytes())
        _require_whole(data, min(status.size, PIECE_BYTES), place)
        return status, data
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
    return head(str(place)), memoryview(b"")


class Windows:
    """The bytes of one object, fetched in windows. Several threads may read: one at a time."""

    _begins_small = False
    """Whether the first read fetches less than a window, since the caller may need only the first batch."""

    def __init__(self, path: str | os.PathLike[str], status: ObjectStatus | None = None) -> None:
        """``status``: the object's, if it was listed; then nothing is fetched yet. Raises OSError."""
        self._place = place_of(path)
        self.requests, self._begins_small = (0, True) if status else (1, False)
        self._set_state(*((status, memoryview(b"")) if status else _first_piece(self._place)))

    def _set_state(self, status: ObjectStatus, data: memoryview) -> None:
        """Set the state: ``data``, the object's first bytes, is the present window."""
        self._reading = threading.Lock()
        self.status, self._data = status, data
        self._start = self._last_read_end = 0
        # (start of the next window, its bytes on their way); None: it was not requested.
        self._next: tuple[int, Future[memoryview]] | None = None

    def read_into(self, buffer: np.ndarray[Any, Any], position: int) -> int:
        """Fill ``buffer`` from ``position``; returns the bytes read, fewer only at the end. Raises
        OSError."""
        view = memoryview(buffer.data).cast("B")
        with self._reading:
            return self._read_into(view[: max(min(len(view), self.status.size - position), 0)], position)

    def _read_into(self, view: memoryview, position: int) -> int:
        done = 0
        while done < len(view):
            at = position + done
            offset = at - self._start
            if not 0 <= offset < len(self._data):
                self._fetch(at, len(view) - done)
                offset = at - self._start
            part = self._data[offset : offset + len(view) - done]
            view[done : done + len(part)] = part
            done += len(part)
            self._last_read_end = position + done
        return done

    def _fetch(self, at: int, wanted: int) -> None:
        """Put a window that begins at or before ``at`` in the place of the present one."""
        size = self.status.size
        if size <= SMALL_BYTES:
            self._start, self._data = 0, self._get(0, size)
            return
        is_sequential = at in (self._last_read_end, 0) and not self._begins_small
        self._begins_small = False
        if self._next is not None and self._next[0] <= at < self._next[0] + WINDOW_BYTES:
            # It was requested before, and may still be on its way.
            (self._start, coming), self._next = self._next, None
            self._data = coming.result()
        else:
            length = max(wanted, WINDOW_BYTES if is_sequential else PIECE_BYTES)
            self._start, self._data = at, self._get(at, self._window_end(at, length))
        end = self._start + len(self._data)
        if is_sequential and end < size and self._next is None:
            self._next = (
                end,
                _threads(os.getpid()).submit(self._get, end, self._window_end(end, WINDOW_BYTES)),
            )

    def _window_end(self, start: int, length: int) -> int:
        """Where the window that begins at ``start`` ends."""
        return min(start + length, self.status.size)

    def _get(self, start: int, end: int) -> memoryview:
        """Fetch the bytes from ``start`` to ``end`` of the object that was opened. Raises OSError."""
        self.requests += 1
        place, etag = self._place, self.status.etag
        options: dict[str, Any] = {"range": (start, end)} if end > start else {}
        if etag is not None:
            options["if_match"] = etag if '"' in etag else f'"{etag}"'
        with _as_os_error(str(place)):
            piece = memoryview(_store_of(place).get(place.key, options=options).bytes())
        _require_whole(piece, end - start, place)
        return piece

    def close(self) -> None:
        """Forget what was fetched; the next window is not fetched if its turn has not come."""
        if self._next is not None:
            self._next[1].cancel()
        self._data, self._next = memoryview(b""), None


# Writing: whole objects, each under a key of its own, which is never written again (but for ``put_hint``).
# The object that a reader reads first is written last, so the reader sees all that it names, or nothing.


_OTHER_BYTES = "the store has other bytes than those that were put"


def put_new(path: str | os.PathLike[str], data: bytes | memoryview) -> bool:
    """Put an object unless there is one of its key (``If-None-Match: *``); returns whether it was put. A put
    whose response gets lost is repeated, and then this is False although the object was put (see
    ``put_own``). What the store has is compared with ``data``, and removed if it is not the same. Raises
    OSError."""
    place = place_of(path)

    def put() -> str | None:
        with _as_os_error(str(place)):
            done = _store_of(place).put(place.key, bytes(data), mode="create", use_multipart=False)
            tag: str | None = done["e_tag"]
            return tag

    try:
        etag = _retried(put)
    except FileExistsError:
        return False
    # Where the store does not encrypt with its own keys, the ETag is the MD5, and nothing has to be read
    # back.
    is_same = (etag or "").strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest()
    if not is_same and read_whole(path) != data:
        with contextlib.suppress(OSError):
            delete_objects([path])
        raise OSError(errno.EIO, _OTHER_BYTES, str(place))
    return True


def put_own(path: str | os.PathLike[str], data: bytes) -> bool:
    """``put_new`` of bytes that no other writer puts; returns whether the object has them, even if responses
    got lost. Raises OSError."""
    return put_new(path, data) or read_whole(path) == data


def claim(path: str | os.PathLike[str], data: bytes) -> bool:
    """``put_own`` of an object that keeps other writers out. Raises OSError, also for a store that ignores
    ``If-None-Match``: there two writers would not learn of each other."""
    if not put_own(path, data):
        return False
    if put_new(path, data):  # a second put of the key, which must fail
        with contextlib.suppress(OSError):
            delete_objects([path])
        reason = "the store ignores If-None-Match, so it cannot keep two writers apart; nothing was written"
        raise OSError(errno.EOPNOTSUPP, reason, str(place_of(path)))
    return True


def put_hint(path: str | os.PathLike[str], data: bytes) -> None:
    """Put an object, or replace the one of its key. It is only a hint: several writers put it, so it may be
    out of date. Raises OSError."""
    place = place_of(path)

    def put() -> None:
        with _as_os_error(str(place)):
            _store_of(place).put(place.key, data, use_multipart=False)

    _retried(put)


PART_BYTES = 16 << 20
"""Bytes of one request of a file that is put in parts."""


def put_file(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Put a file of this machine under a new key, in parts if it is large; it appears as a whole. What the
    store has is compared with the file, and removed if it is not the same. Raises OSError."""
    place, size = place_of(path), os.stat(source).st_size
    is_large = size > PART_BYTES

    def put() -> str | None:
        with open(source, "rb") as file, _as_os_error(str(place)):
            done = _store_of(place).put(place.key, file, use_multipart=is_large, chunk_size=PART_BYTES)
            tag: str | None = done["e_tag"]
            return tag

    etag = _retried(put)
    if (etag or "").strip('"') != _expected_etag(source) and not _has_bytes_of(source, path, size):
        with contextlib.suppress(OSError):
            delete_objects([path])
        raise OSError(errno.EIO, _OTHER_BYTES, str(place))


def _expected_etag(source: str | os.PathLike[str]) -> str:
    """The ETag of S3 for a file: the MD5 of its bytes, or that of its parts' MD5s with their number."""
    with open(source, "rb") as file:
        parts = iter(lambda: file.read(PART_BYTES), b"")
        digests = [hashlib.md5(part, usedforsecurity=False).digest() for part in parts]
    if len(digests) < 2:
        return b"".join(digests).hex() or hashlib.md5(b"", usedforsecurity=False).hexdigest()
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


def _has_bytes_of(source: str | os.PathLike[str], path: str | os.PathLike[str], size: int) -> bool:
    """Does the object have the bytes of the file?"""
    if head(path).size != size:
        return False
    with open(source, "rb") as file:
        return all(
            file.read(PART_BYTES) == read_range(path, start, min(start + PART_BYTES, size), size)
            for start in range(0, size, PART_BYTES)
        )


def copy_object(source: str | os.PathLike[str], target: str | os.PathLike[str], size: int) -> None:
    """Let the store copy an object of ``size`` bytes within a bucket. Raises FileNotFoundError, OSError, also
    for a copy of another size or, as far as ETags tell, with other bytes; such a copy is removed."""
    before, after = place_of(source), place_of(target)

    def copy() -> None:
        with _as_os_error(str(before)):
            _store_of(before).copy(before.key, after.key)

    _retried(copy)
    copied, reason = head(target), None
    if copied.size != size:
        reason = f"the store's copy has {copied.size} of {size} bytes"
    elif _has_another_md5(source, copied) and not _has_bytes_of_object(source, target, size):
        reason = "the store's copy has other bytes"
    if reason is not None:
        with contextlib.suppress(OSError):  # a chunk that stays would count as stored in the next backup
            delete_objects([target])
        raise OSError(errno.EIO, reason, str(after))


_MD5 = re.compile(r'"?[0-9a-f]{32}"?')


def _has_another_md5(source: str | os.PathLike[str], copied: ObjectStatus) -> bool:
    """Do both ETags look like an MD5, and differ? With SSE-KMS an ETag looks like one and is none, so the
    caller compares the bytes before it refuses the copy."""
    if copied.etag is None or not _MD5.fullmatch(copied.etag):
        return False
    etag = head(source).etag or ""
    return bool(_MD5.fullmatch(etag)) and etag.strip('"') != copied.etag.strip('"')


def _has_bytes_of_object(source: str | os.PathLike[str], target: str | os.PathLike[str], size: int) -> bool:
    """Do both objects have the same bytes?"""
    return all(
        read_range(source, start, end, size) == read_range(target, start, end, size)
        for start in range(0, size, PART_BYTES)
        for end in [min(start + PART_BYTES, size)]
    )


def is_same_store(path: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Are both in one bucket of one store?"""
    places = (place_of(path), place_of(other))
    return len({(_STORE_SCHEME.get(place.scheme, place.scheme), place.bucket) for place in places}) == 1


def is_below(path: str | os.PathLike[str], directory: str | os.PathLike[str]) -> bool:
    """Is an object's path the directory's, or below it?"""
    inner, outer = place_of(path), place_of(directory)
    return is_same_store(path, directory) and f"{inner.key}/".startswith(outer.prefix)


DELETED_KEYS_MAX = 1_000
"""The most keys of one call of obstore, which sends its requests (S3 takes 1,000 keys in one, Azure 256) at
one time: a slow server has to answer the last of them within a request's time, too."""


def delete_objects(paths: Sequence[str | os.PathLike[str]]) -> None:
    """Delete objects of one bucket; a missing one is no error. Raises OSError."""
    for start in range(0, len(paths), DELETED_KEYS_MAX):
        _delete([place_of(path) for path in paths[start : start + DELETED_KEYS_MAX]])


def _delete(places: Sequence[Place]) -> None:
    """Delete up to ``DELETED_KEYS_MAX`` objects of one bucket."""

    def delete() -> None:
        with _as_os_error(str(places[0])):
            _store_of(places[0]).delete([place.key for place in places])

    try:
        _retried(delete)
    except FileNotFoundError:  # for one missing key Azure may leave others: halve until it is alone
        middle = len(places) // 2
        for half in (places[:middle], places[middle:]) if middle else ():
            _delete(half)


def objects_below(path: str | os.PathLike[str]) -> Iterator[tuple[str, ObjectStatus]]:
    """All objects below a directory, however deep: (the key from there, its status). Raises OSError."""
    place = place_of(path)

    def listed() -> list[Any]:
        with _as_os_error(str(place)):
            return [row for chunk in _store_of(place).list(place.prefix or None) for row in chunk]

    for row in _retried(listed):
        yield str(row["path"])[len(place.prefix) :], _status(row)

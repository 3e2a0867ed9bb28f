"""Reading a log from an object store beside plain range reads of the same objects; backups beside plain puts.

    python -m bench.objects [--mb 400] [--rounds 3] [--endpoint URL]

Without ``--endpoint`` moto's server is started, which is slow, and shares the machine. The plain reads fetch
the log's objects in ranges of the reader's size, one after another, and look at nothing. The reader goes
through ``st.open``: lists, indexes, checksums, offsets of all records. Both take turns in one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from obstore.store import S3Store

import siltstone as st
from siltstone.base import files
from siltstone.base.files import objects
from siltstone.commands.backup import BackupRequest, backup
from siltstone.tables.arrow import to_batches

_VALUE_BYTES, _BATCH_RECORDS = 1_000, 1_000
_BUCKET = "bench"
requests: Counter[str] = Counter()


class _Counted:
    """A store whose calls are counted; a list may be several requests, and is one here."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        requests[name] += 1
        return getattr(self._store, name)


def make_log(path: Path, megabytes: int) -> None:
    """One partition of values that do not compress, in one segment."""
    random = np.random.default_rng(28)
    with st.open(path, mode="a", config={"log.segment.bytes": (1 << 31) - 1}) as logs:
        logs.topics.create("users", 1, {})
        for number in range(megabytes * 1_000_000 // _VALUE_BYTES // _BATCH_RECORDS):
            values = random.integers(0, 256, (_BATCH_RECORDS, _VALUE_BYTES), np.uint8)
            rows = [
                st.NewRecord(key=b"%d" % (number * _BATCH_RECORDS + row), value=values[row].tobytes())
                for row in range(_BATCH_RECORDS)
            ]
            logs.send_many("users", rows)


def plain_read(store: Any, prefix: str) -> int:
    """All bytes of the log's objects, in ranges."""
    size = 0
    for chunk in store.list(prefix):
        for row in chunk:
            for start in range(0, row["size"], objects.WINDOW_BYTES):
                end = min(start + objects.WINDOW_BYTES, row["size"])
                size += len(store.get(row["path"], options={"range": (start, end)}).bytes())
    return size


def read_log(url: str) -> int:
    """The offsets of all records, through the reader; returns how many."""
    with st.open(url) as logs:
        return sum(batch.num_rows for batch in to_batches(logs["users"][0], columns=["offset"]))


def plain_upload(store: Any, path: Path) -> int:
    """Each file as one put, or one of many parts."""
    for file in path.rglob("*"):
        if file.is_file():
            store.put(f"plain/{file.relative_to(path)}", file)
    return 0


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--endpoint")
    options = parser.parse_args()
    if options.endpoint is None:
        from tests.support.objects.store import s3_server

        with s3_server() as url:
            measure(url, options.mb, options.rounds)
    else:
        measure(options.endpoint, options.mb, options.rounds)


def measure(url: str, megabytes: int, rounds: int) -> None:
    """With a server at ``url``."""
    os.environ.update(AWS_ENDPOINT_URL=url, AWS_REGION="us-east-1")
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    httpx.put(f"{url}/{_BUCKET}")
    store = S3Store(_BUCKET, endpoint=url, client_options={"allow_http": "true"})
    opened = objects._of
    objects._of = lambda place: _Counted(opened(place))
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder) / "logs"
        make_log(logs, megabytes)
        size = sum(status.size for status in files.list_all(logs / "users-0").values())
        plain, backups = [], []
        for number in range(rounds):
            plain.append(timed(lambda: plain_upload(store, logs)))
            target = Path(f"s3://{_BUCKET}/backups-{number}")
            request = BackupRequest(directories=[logs], target=target)
            backups.append(timed(lambda request=request: backup(request)))
        report("plain puts", size, plain)
        report("backup", size, backups, plain)
        read_log(f"s3://{_BUCKET}/plain")  # kernels are loaded
        plain, reads = [], []
        for _ in range(rounds):
            plain.append(timed(lambda: plain_read(store, "plain/users-0/")))
            requests.clear()
            reads.append(timed(lambda: read_log(f"s3://{_BUCKET}/plain")))
        report("plain range reads", size, plain)
        report("st.open, all offsets", size, reads, plain)
        sys.stdout.write(f"requests of one read: {requests.total()} ({dict(requests)})\n")


def report(what: str, size: int, seconds: list[float], beside: list[float] | None = None) -> None:
    """A line: the median, and the median of the ratios of each turn."""
    line = f"{what:24} {size / statistics.median(seconds) / 1e6:8.0f} MB/s"
    if beside is not None:
        ratio = statistics.median(base / own for base, own in zip(beside, seconds, strict=True))
        line += f"  {ratio:5.2f} of the plain one's speed"
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()

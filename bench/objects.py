"""Reading a log from an object store, also from a tiered storage, beside plain range reads of the same
objects; backups beside plain puts, restores beside plain downloads; a cleaned copy from bucket to bucket.

    python -m bench.objects [--mb 400] [--rounds 3] [--endpoint URL]

Without ``--endpoint`` moto's server is started, which is slow, and shares the machine. The plain reads fetch
the log's objects in ranges of the reader's size, one after another, and look at nothing. The reader goes
through ``st.open``: lists, indexes, checksums, offsets of all records. Both take turns in one process.
"""

from __future__ import annotations

import argparse
import os
import shutil
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
from siltstone.commands.backup import BackupRequest, backup, restore
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


def make_log(
    path: Path, megabytes: int, topic: str = "users", segment_bytes: int = (1 << 31) - 1, keys: int = 1 << 62
) -> None:
    """One partition of values that do not compress."""
    random = np.random.default_rng(28)
    with st.open(path, mode="a", config={"log.segment.bytes": segment_bytes}) as logs:
        logs.topics.create(topic, 1, {})
        for number in range(megabytes * 1_000_000 // _VALUE_BYTES // _BATCH_RECORDS):
            values = random.integers(0, 256, (_BATCH_RECORDS, _VALUE_BYTES), np.uint8)
            rows = [
                st.NewRecord(
                    key=b"%d" % ((number * _BATCH_RECORDS + row) % keys), value=values[row].tobytes()
                )
                for row in range(_BATCH_RECORDS)
            ]
            logs.send_many(topic, rows)


def plain_read(store: Any, prefix: str) -> int:
    """All bytes of the log's objects, in ranges."""
    size = 0
    for chunk in store.list(prefix):
        for row in chunk:
            for start in range(0, row["size"], objects.WINDOW_BYTES):
                end = min(start + objects.WINDOW_BYTES, row["size"])
                size += len(store.get(row["path"], options={"range": (start, end)}).bytes())
    return size


def read_log(path: str | Path, topic: str = "users", remote: str | None = None) -> int:
    """The offsets of all records, through the reader; returns how many."""
    with st.open(path, remote=remote) as logs:
        return sum(batch.num_rows for batch in to_batches(logs[topic][0], columns=["offset"]))


def plain_download(store: Any, prefix: str, target: Path) -> None:
    """All objects into files, in ranges."""
    for chunk in store.list(prefix):
        for row in chunk:
            path = target / row["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                for start in range(0, row["size"], objects.WINDOW_BYTES):
                    end = min(start + objects.WINDOW_BYTES, row["size"])
                    file.write(store.get(row["path"], options={"range": (start, end)}).bytes())
                os.fsync(file.fileno())


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
        puts, backups = [], []
        for number in range(rounds):
            puts.append(timed(lambda: plain_upload(store, logs)))
            target = Path(f"s3://{_BUCKET}/backups-{number}")
            request = BackupRequest(directories=[logs], target=target)
            backups.append(timed(lambda request=request: backup(request)))
        report("plain puts", size, puts)
        report("backup", size, backups, puts)
        read_log(f"s3://{_BUCKET}/plain")  # kernels are loaded
        range_reads, reads = [], []
        for _ in range(rounds):
            range_reads.append(timed(lambda: plain_read(store, "plain/users-0/")))
            requests.clear()
            reads.append(timed(lambda: read_log(f"s3://{_BUCKET}/plain")))
        report("plain range reads", size, range_reads)
        report("st.open, all offsets", size, reads, range_reads)
        sys.stdout.write(f"requests of one read: {requests.total()} ({dict(requests)})\n")
        measure_restore(store, Path(folder), size, rounds)
        measure_clean(store, Path(folder), megabytes, rounds)
        for compressed in (False, True):
            measure_tiers(store, Path(folder), megabytes, rounds, compressed=compressed)


def measure_restore(store: Any, folder: Path, size: int, rounds: int) -> None:
    """Restores beside plain downloads."""
    downloads, restores = [], []
    for number in range(rounds):
        down, target = folder / f"down{number}", folder / f"restored{number}"
        downloads.append(timed(lambda down=down: plain_download(store, "plain/", down)))
        requests.clear()
        restores.append(timed(lambda target=target: restore(Path(f"s3://{_BUCKET}/backups-0"), target)))
        shutil.rmtree(down)
        shutil.rmtree(target)
    report("plain downloads", size, downloads)
    report("restore", size, restores, downloads)
    sys.stdout.write(f"requests of one restore: {requests.total()} ({dict(requests)})\n")


def measure_clean(store: Any, folder: Path, megabytes: int, rounds: int) -> None:
    """clean --out from objects into a bucket, beside plain range reads of the source: 8 records for a key."""
    make_log(folder / "dirty", megabytes, segment_bytes=64 << 20, keys=megabytes * 125)
    for file in (folder / "dirty").rglob("*"):
        if file.is_file():
            store.put(f"dirty/{file.relative_to(folder / 'dirty')}", file)
    size = sum(status.size for status in files.list_all(folder / "dirty" / "users-0").values())
    range_reads, cleans = [], []
    for number in range(rounds):
        range_reads.append(timed(lambda: plain_read(store, "dirty/users-0/")))
        out = Path(f"s3://{_BUCKET}/cleaned-{number}")
        requests.clear()
        cleans.append(timed(lambda out=out: clean(out)))
    report("plain range reads", size, range_reads)
    report("clean --out", size, cleans, range_reads)
    sys.stdout.write(f"requests of one clean --out: {requests.total()} ({dict(requests)})\n")


def clean(out: Path) -> None:
    """Compact the topic into a bucket."""
    config = {"cleanup.policy": "compact"}
    st.clean(f"s3://{_BUCKET}/dirty", out=out, topic="users", config=config, engine="process", force=True)


def measure_tiers(store: Any, folder: Path, megabytes: int, rounds: int, *, compressed: bool) -> None:
    """A log whose closed segments are in the bucket as Aiven's plugin puts them."""
    from tests.support.tiered import TOPIC, TieredLog

    name = "zstd" if compressed else "stored"
    logs = folder / name
    make_log(logs, megabytes, TOPIC, 64 << 20)
    log = TieredLog(
        directory=logs,
        put=lambda key, data: store.put(f"{name}/{key}", data),
        compressed=compressed,
        chunk_size=4 << 20,
    )
    log.tier(keep=1)
    size = sum(row["size"] for chunk in store.list(f"{name}/") for row in chunk)
    remote = f"s3://{_BUCKET}/{name}"
    read_log(logs, TOPIC, remote)
    range_reads, reads = [], []
    for _ in range(rounds):
        range_reads.append(timed(lambda: plain_read(store, f"{name}/")))
        requests.clear()
        reads.append(timed(lambda: read_log(logs, TOPIC, remote)))
    report(f"plain, tier {name}", size, range_reads)
    report(f"st.open(remote=), {name}", size, reads, range_reads)
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

"""Do the executors see the files that we see? Asked before anything is cleaned on a cluster.

A nonce is written into the folder where tasks will write. Every task must read the same nonce there, from
the same inode, and be the same user: only then may tasks stage files for the owner to rename.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from siltstone.base import files
from siltstone.base.errors import EngineError

_PROBES = 8


def _look(path: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        try:
            facts = files.stat(path)
            seen = {"nonce": files.read_bytes(path).hex(), "inode": facts.inode, "user": os.geteuid()}
        except OSError as error:
            seen = {"error": error.strerror}
        yield pa.RecordBatch.from_pydict({"seen": [json.dumps(seen)]})


def refuse_strange_executors(session: SparkSession, folder: Path) -> None:
    """Raises EngineError when an executor does not share our file system and user."""
    path = folder / f".siltstone-probe-{secrets.token_hex(8)}"
    nonce = secrets.token_bytes(16)
    files.write_new(path, nonce)
    try:
        wanted = {"nonce": nonce.hex(), "inode": files.stat(path).inode, "user": os.geteuid()}
        frame = session.range(0, _PROBES, 1, _PROBES).mapInArrow(
            functools.partial(_look, str(path)), "seen string"
        )
        strange = [row.seen for row in frame.collect() if json.loads(row.seen) != wanted]
    finally:
        files.unlink(path)
    if strange:
        raise EngineError(
            f"the executors do not share {folder} with this machine and user ({strange[0]}); "
            "clean with --master local[*], or with --out on storage that all of them share"
        )

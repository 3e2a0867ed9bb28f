"""A small log, cleaned for nothing but to have every kernel of a cleaning compiled and loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from siltstone.base import files
from siltstone.base.codec_table import CODECS
from siltstone.base.records.build import BatchShape, Spans, build_batch, encode_headers
from siltstone.base.records.control import end_transaction_marker
from siltstone.compaction.engine import Engine
from siltstone.compaction.extraction import Group
from siltstone.compaction.work import LogWork
from siltstone.log.names import segment_file
from siltstone.log.segments import list_segments

END = 20 * len(CODECS)
"""Offset of the last batch."""


def small_batches() -> list[bytes]:
    """A few batches of every codec, with superseded keys, tombstones and headers, and a transaction's end."""
    batches = []
    for number in range(2 * len(CODECS)):
        offsets = np.arange(number * 10, number * 10 + 10, dtype=np.int64)
        batch = build_batch(
            BatchShape(base_offset=number * 10, codec=number % len(CODECS)),
            offset=offsets,
            timestamp=offsets * 7,
            keys=Spans.of([b"key %d" % (offset % 17) for offset in offsets.tolist()]),
            values=Spans.of([None if offset % 5 == 0 else b"value" for offset in offsets.tolist()]),
            headers=Spans.of([encode_headers([(b"header", None)])] * 10),
        )
        batches.append(batch.tobytes())
    marker = end_transaction_marker(
        commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
    )
    return [*batches, END.to_bytes(8, "big") + marker.tobytes()[8:]]


def clean_small_log(directory: Path, whole: Engine, spread: Engine) -> None:
    """Make it in an empty directory and clean it both ways, by one worker, and spread over several; and one
    whose keys are looked up."""
    files.write_new(directory / segment_file(0, "log"), b"".join(small_batches()))
    (done,) = whole.clean_whole([small_work(directory, "whole")])
    (again,) = whole.clean_whole([_second_pass(directory / "twice")])
    for each in (done, again, spread.clean_spread(small_work(directory, "spread"))):
        assert each.found.failure is None and each.groups[0].failure is None, each


def _second_pass(directory: Path) -> LogWork:
    """The cleaning of a log in a new directory of which only the last batch is dirty."""
    *clean, dirty = small_batches()[:-1]
    first = END - 10
    files.make_directory(directory)
    files.write_new(directory / segment_file(0, "log"), b"".join(clean))
    files.write_new(directory / segment_file(first, "log"), dirty)
    groups = (
        Group(index=0, first=0, last=1, base_offset=0, end_offset=first),
        Group(index=1, first=1, last=2, base_offset=first, end_offset=END),
    )
    return replace(small_work(directory, "staged"), groups=groups, first_dirty=first, end=END)


def small_work(directory: Path, name: str) -> LogWork:
    """The cleaning of the small log in ``directory``, staged in its folder ``name``, which is made."""
    files.make_directory(directory / name)
    end = END + 1
    return LogWork(
        name=name,
        segments=tuple(list_segments(directory)),
        groups=(Group(index=0, first=0, last=1, base_offset=0, end_offset=end),),
        first_dirty=end // 4,
        end=end,
        now_ms=0,
        delete_retention_ms=1,
        producers=(),
        index_interval=4096,
        index_bytes=1 << 20,
        drop_keyless=True,
        staging=str(directory / name),
        hash_key=(1, 2),
        window_size=1 << 16,
        memory_bytes=1 << 20,
    )

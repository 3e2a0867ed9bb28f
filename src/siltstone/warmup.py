"""Compile the kernels, so that the first cleaning does not have to: ``python -m siltstone.warmup``.

A small log is built and cleaned in memory and on a temporary directory, both ways.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from siltstone import files
from siltstone.cleaner.engine import InProcessEngine
from siltstone.cleaner.work import Group, LogWork
from siltstone.log.names import segment_file
from siltstone.log.segments import list_segments
from siltstone.records.build import BatchShape, Spans, build_batch, encode_headers
from siltstone.records.layout import CODECS


def _log() -> bytes:
    """A few batches of every codec, with superseded keys, tombstones and headers."""
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
    return b"".join(batches)


def main() -> None:
    """Compile everything that a cleaning calls."""
    with files.temporary_directory("siltstone-warmup-") as folder:
        directory = Path(folder)
        files.write_new(directory / segment_file(0, "log"), _log())
        end = 20 * len(CODECS)
        for name, engine in (("whole", InProcessEngine()), ("spread", InProcessEngine(2))):
            files.make_directory(directory / name)
            work = LogWork(
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
            (done,) = engine.clean_whole([work]) if name == "whole" else [engine.clean_spread(work)]
            assert done.found.trouble is None and done.groups[0].trouble is None, done


if __name__ == "__main__":
    main()

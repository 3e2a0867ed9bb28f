"""A log of one large segment group, cut into ranges or not: ``python -m bench.ranges``.

A session for each number of executors, each in a process of its own, cleans fresh copies of one log in turns:
all sides, then all in reverse, and so on. Seconds are from the lock to the checkpoint; processor seconds are
those of the process tree, Java and executors included.

``--steps``: the steps in this process instead, in processor seconds, which other load hardly changes. The
*longest path* is what the busiest of so many workers rewrites, and the join after that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bench import generate as generating
from bench.generate import Generated, generate
from bench.measure import clean_once, planned_cleaning
from siltstone.compaction import work
from siltstone.compaction.assembling import assemble_pieces, remove_pieces
from siltstone.compaction.engine import MergedLog, with_ranges
from siltstone.compaction.rewrite import Buffers
from siltstone.compaction.staging import PieceReport, rewrite_range
from siltstone.spark.clean import SparkEngine
from siltstone.spark.session import start_session

OUT = Path(__file__).parent / "out"
NEVER = 1 << 62
Result = TypeVar("Result")
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure, and print a table; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--size-mb", type=int, default=1000, help="size before compression")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--masters", default="local-cluster[1,1,1024];local-cluster[2,1,1024]")
    parser.add_argument("--keys", type=int, help="of which the records' keys are drawn (a million)")
    parser.add_argument("--steps", action="store_true", help="processor seconds of the steps, without Spark")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = OUT / f"one-group-{arguments.codec}-{arguments.size_mb}-{arguments.keys or ''}"
    generating.SEGMENT_BYTES = 1 << 30
    generated = generate(folder, arguments.size_mb * 1_000_000, arguments.codec, keys=arguments.keys)
    if arguments.steps:
        _print_steps(folder, generated)
        return 0
    if arguments.serve:
        _serve(arguments.serve, folder, generated)
        return 0
    masters = arguments.masters.split(";")
    sides = [(master, way) for master in masters for way in ("whole", "cut")]
    command = [sys.executable, "-m", "bench.ranges", *sys.argv[1:], "--serve"]
    servers = {
        master: subprocess.Popen([*command, master], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for master in masters
    }
    times: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for turn in range(arguments.runs + 1):
        for side in sides if turn % 2 else reversed(sides):
            times_of_run = _ask(servers[side[0]], side[1])
            if turn:  # the first turn warms up
                times[side].append(times_of_run)
    for server in servers.values():
        server.communicate()
    print(
        f"{generated.codec}, {generated.closed_size / 1e6:.0f} MB in one segment, "
        f"{generated.cleaned_records} records"
    )
    for side in sides:
        seconds, processor = zip(*times[side], strict=True)
        print(
            f"{side[0]:26} {side[1]:6} {statistics.median(seconds):6.2f} s "
            f"({min(seconds):.2f}-{max(seconds):.2f}), processor {statistics.median(processor):.1f} s"
        )
    return 0


def _print_steps(folder: Path, generated: Generated) -> None:
    """Rewrite the group whole, and cut for 2, 4 and 16 workers; prints processor seconds."""
    print(
        f"{generated.codec}, {generated.closed_size / 1e6:.0f} MB in one segment, "
        f"{generated.distinct_keys} keys"
    )
    with planned_cleaning(folder) as (planned, _):
        buffers = Buffers()
        for workers in (1, 2, 4, 16):
            cut = with_ranges(replace(planned.work, may_cut_groups=True), [planned.work.groups], workers)
            merged, extracted = _timed(lambda: MergedLog(cut, 2))  # noqa: B023
            loads, pieces = [0.0] * workers, list[PieceReport]()
            for group_range in sorted(cut.ranges, key=lambda group_range: group_range.task):
                inputs = merged.input_of(group_range)
                part, seconds = _timed(
                    lambda: rewrite_range(cut, group_range, inputs[0], str(workers), inputs[1], buffers)  # noqa: B023
                )
                assert part.failure is None, part.failure
                loads[loads.index(min(loads))] += seconds
                pieces += part.pieces
            joined = 0.0
            if pieces:
                group, joined = _timed(lambda: assemble_pieces(cut, cut.groups[0], pieces, str(workers)))  # noqa: B023
                assert group.failure is None, group.failure
                remove_pieces(cut)
            print(
                f"{workers:2} workers, {len(cut.ranges):2} ranges: extract and merge {extracted:.2f} s, "
                f"rewrite {sum(loads):.2f} s, join {joined:.2f} s, longest path {max(loads) + joined:.2f} s",
                flush=True,
            )


def _timed(step: Callable[[], Result]) -> tuple[Result, float]:
    """The result of a step, and its processor seconds."""
    before = time.process_time()
    return step(), time.process_time() - before


def _ask(server: subprocess.Popen[str], way: str) -> list[float]:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(f"{way}\n")
    server.stdin.flush()
    for line in server.stdout:
        if line.startswith("["):
            return json.loads(line)
    raise SystemExit(f"a session has ended with {server.wait()}")


def _serve(master: str, folder: Path, generated: Generated) -> None:
    """Clean once for each line of the standard input, which says how."""
    engine = SparkEngine(start_session(master))
    threshold = work.MIN_CUT_BYTES
    for line in sys.stdin:
        work.MIN_CUT_BYTES = threshold if line.strip() == "cut" else NEVER
        before = processor_seconds()
        seconds = clean_once(engine, folder, generated)
        print(json.dumps([seconds, processor_seconds() - before]), flush=True)


def processor_seconds() -> float:
    """User and system time of this process and of those that it started, also of those that have ended."""
    children, ticks = defaultdict(list), {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split() if entry.name.isdigit() else None
        except OSError:
            continue
        if fields is not None:
            children[int(fields[1])].append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, pending = 0, [os.getpid()]
    while pending:
        process = pending.pop()
        total += ticks.get(process, 0)
        pending += children[process]
    return total / _TICKS


if __name__ == "__main__":
    sys.exit(main())

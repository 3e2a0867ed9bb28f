"""A log of one large segment group, cut into ranges or not: ``python -m bench.ranges``.

A session for each number of executors, each in a process of its own, cleans fresh copies of one log in turns:
all sides, then all in reverse, and so on. Seconds are from the lock to the checkpoint; processor seconds are
those of the process tree, Java and executors included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from bench import generate as generating
from bench.generate import Generated, generate
from bench.measure import clean_once
from siltstone.compaction import work
from siltstone.spark.clean import SparkEngine
from siltstone.spark.session import start_session

OUT = Path(__file__).parent / "out"
NEVER = 1 << 62
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure, and print a table; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--size-mb", type=int, default=1000, help="size before compression")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--masters", default="local-cluster[1,1,1024];local-cluster[2,1,1024]")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = OUT / f"one-group-{arguments.codec}-{arguments.size_mb}"
    generating.SEGMENT_BYTES = 1 << 30
    made = generate(folder, arguments.size_mb * 1_000_000, arguments.codec)
    if arguments.serve:
        _serve(arguments.serve, folder, made)
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
            found = _ask(servers[side[0]], side[1])
            if turn:  # the first turn warms up
                times[side].append(found)
    for server in servers.values():
        server.communicate()
    print(f"{made.codec}, {made.closed_size / 1e6:.0f} MB in one segment, {made.cleaned_records} records")
    for side in sides:
        seconds, processor = zip(*times[side], strict=True)
        print(
            f"{side[0]:26} {side[1]:6} {statistics.median(seconds):6.2f} s "
            f"({min(seconds):.2f}-{max(seconds):.2f}), processor {statistics.median(processor):.1f} s"
        )
    return 0


def _ask(server: subprocess.Popen[str], way: str) -> list[float]:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(f"{way}\n")
    server.stdin.flush()
    for line in server.stdout:
        if line.startswith("["):
            return json.loads(line)
    raise SystemExit(f"a session has ended with {server.wait()}")


def _serve(master: str, folder: Path, made: Generated) -> None:
    """Clean once for each line of the standard input, which says how."""
    engine = SparkEngine(start_session(master))
    threshold = work.MIN_CUT_BYTES
    for line in sys.stdin:
        work.MIN_CUT_BYTES = threshold if line.strip() == "cut" else NEVER
        before = processor_seconds()
        seconds = clean_once(engine, folder, made)
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

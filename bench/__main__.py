"""``python -m bench``: generate the logs, measure, show a table. Exits with 1 when a result is wrong.

The product is imported where it is used, so that ``--help`` needs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import measure
from bench.cleaning_load import measure_cleaning_load
from bench.clusters import SideTimes, measure_clusters
from bench.compacted import measure_compaction
from bench.generate import Generated, generate
from bench.measure import Times, WrongResultError
from bench.partition_log import Figure, measure_log
from bench.tables import measure_tables
from siltstone.compaction.engine import Engine
from siltstone.spark.clean import SparkEngine
from siltstone.spark.compact import SparkCompactionEngine
from siltstone.spark.session import start_session

OUT = Path(__file__).parent / "out"
WARM_UP_BYTES = 80_000_000

Measured = dict[str, Times]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure the log, and the cleaner on generated logs."
    )
    parser.add_argument("--size-mb", type=int, default=1000, help="size of the log before compression (1000)")
    parser.add_argument("--codecs", default="none,lz4,zstd", help="codecs, separated by commas")
    parser.add_argument("--cold", type=int, default=3, help="repetitions as a process of its own (3)")
    parser.add_argument("--warm", type=int, default=7, help="repetitions on a running session (7)")
    parser.add_argument(
        "--only",
        choices=("cleaner", "log", "load", "compacted", "tables"),
        help="the cleaner, the log itself, appends while it is cleaned, compaction beside it, tables (all)",
    )
    parser.add_argument(
        "--executors",
        type=_numbers,
        default=(2,),
        help="the cleaner on clusters of so many executors of one core, separated by commas; 0 for none (2)",
    )
    parser.add_argument("--append-gb", type=int, default=10, help="GB of the long append (10)")
    parser.add_argument(
        "--kafka", action="store_true", help="tables: beside Spark's own source from a broker (needs Maven)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    """Numbers of executors, separated by commas."""
    return tuple(sorted({number for number in map(int, text.split(",")) if number > 0}))


def _engine() -> Engine:
    """A session that has started, and has cleaned a small log."""
    engine = SparkEngine(start_session("local[*]"))
    folder = OUT / "none-warm-up"
    measure.clean_once(engine, folder, generate(folder, WARM_UP_BYTES, "none"))
    return engine


def _measure(engine: Engine, folder: Path, generated: Generated, arguments: argparse.Namespace) -> Measured:
    measured: Measured = {}
    if arguments.warm:
        measured["warm"] = measure.warm(engine, folder, generated, arguments.warm)
    if arguments.cold:
        measured["cold"] = measure.cold(folder, generated, arguments.cold)
    measured |= measure.pieces(folder, generated)
    return measured | measure.machine(folder, generated)


def _table(generated: Generated, measured: Mapping[str, Times]) -> Table:
    title = (
        f"{generated.codec}: {generated.closed_size / 1e6:,.0f} MB in {generated.segments} segments "
        f"({generated.plain_size / 1e6:,.0f} MB of records), {generated.cleaned_records:,} records, "
        f"{generated.distinct_keys:,} keys"
    )
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("what")
    for name in ("times", "median s", "min-max s", "GB/s", "GB/s of records"):
        table.add_column(name, justify="right")
    for name, times in measured.items():
        speed = times.size / times.median / 1e9
        is_whole = times.size == generated.closed_size
        table.add_row(
            name,
            str(len(times.seconds)),
            f"{times.median:.3f}",
            f"{min(times.seconds):.3f}-{max(times.seconds):.3f}",
            f"{speed:.2f}",
            f"{generated.plain_size / times.median / 1e9:.2f}" if is_whole else "",
        )
    return table


def _cluster_table(generated: Generated, sides: Mapping[str, SideTimes]) -> Table:
    title = f"{generated.codec}: {generated.closed_size / 1e6:,.0f} MB, on clusters of executors of one core"
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("where")
    headers = ("times", "median s", "min-max s", "times local (≤ 2)", "speed-up by executors (≥ 1.7)")
    for name in headers:
        table.add_column(name, justify="right")
    for name, side in sides.items():
        ratios = (side.slower_than_local, side.faster_than_fewest)
        seconds = side.times.seconds
        table.add_row(
            name,
            str(len(seconds)),
            f"{side.times.median:.2f}",
            f"{min(seconds):.2f}-{max(seconds):.2f}",
            *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        )
    return table


def _log_table(figures: Sequence[Figure], title: str = "The log itself") -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for name, justify in (("what", "left"), ("value", "right"), ("ratio", "right"), ("goal", "right")):
        table.add_column(name, justify=justify)
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        table.add_row(figure.name, f"{figure.value:,.2f} {figure.unit}", ratio, figure.goal)
    return table


def main() -> int:
    """Measure the log and every codec of the cleaner; the exit status."""
    arguments = _arguments()
    console, document = Console(width=120), {}
    try:
        if arguments.only in (None, "load"):
            figures = measure_cleaning_load(OUT / "load")
            document["load"] = {figure.name: figure.to_json() for figure in figures}
            if not arguments.json:
                console.print(_log_table(figures, "Appends while the log is cleaned"))
        if arguments.only in (None, "log"):
            figures = measure_log(OUT / "log", gigabytes=arguments.append_gb)
            document["log"] = {figure.name: figure.to_json() for figure in figures}
            if not arguments.json:
                console.print(_log_table(figures))
        if arguments.only in (None, "compacted"):
            spark = SparkCompactionEngine(start_session("local[*]"))
            figures = measure_compaction(spark, OUT / "compacted", arguments.size_mb, arguments.warm or 1)
            document["compacted"] = {figure.name: figure.to_json() for figure in figures}
            if not arguments.json:
                console.print(_log_table(figures, "Compaction beside the originals"))
        if arguments.only in (None, "tables"):
            folder = OUT / f"none-{arguments.size_mb}"
            kafka = OUT / "kafka-source" if arguments.kafka else None
            figures = measure_tables(folder, arguments.size_mb, arguments.warm or 1, kafka)
            document["tables"] = {figure.name: figure.to_json() for figure in figures}
            if not arguments.json:
                console.print(_log_table(figures, "Logs as Spark tables"))
        engine = None if arguments.only in ("log", "load", "compacted", "tables") else _engine()
        for codec in arguments.codecs.split(",") if engine is not None else ():
            folder = OUT / f"{codec}-{arguments.size_mb}"
            generated = generate(folder, arguments.size_mb * 1_000_000, codec)
            measured = _measure(engine, folder, generated, arguments)
            document[codec] = {name: times.to_json() for name, times in measured.items()}
            if not arguments.json:
                console.print(_table(generated, measured))
            if arguments.warm and arguments.executors:
                sides = measure_clusters(folder, generated, arguments.warm, arguments.executors)
                document[codec]["clusters"] = {name: side.to_json() for name, side in sides.items()}
                if not arguments.json:
                    console.print(_cluster_table(generated, sides))
    except WrongResultError as error:
        sys.stderr.write(f"bench: wrong result: {error}\n")
        return 1
    if arguments.json:
        about = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
        print(
            json.dumps({"when": datetime.now(UTC).isoformat(timespec="seconds"), **about, "codecs": document})
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

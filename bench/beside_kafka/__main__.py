"""``python -m bench.beside_kafka``: produce, clean by both, compare, show tables in Markdown.

Exits with 1 when a cleaner failed or the two did not leave the same records.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from bench.beside_kafka.figures import Results, break_even, markdown
from bench.beside_kafka.producing import pristine
from bench.beside_kafka.running import COLD, HOT, SIDES, OtherRecordsError, Plan, measure, say
from bench.beside_kafka.workloads import BREAK_EVEN, WORKLOADS, chosen
from bench.session import NotCleanedError
from siltstone.spark.settings import DEFAULT_MASTER
from tests.support.kafka.jars import java, kafka_version

OUT = Path(__file__).resolve().parents[1] / "out" / "beside-kafka"


def _arguments(command_line: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.beside_kafka",
        description="Our cleaner beside Kafka's own, on twin directories.",
    )
    names = ", ".join(workload.name for workload in WORKLOADS)
    parser.add_argument("--workloads", default="all", help=f"all, break-even, or some of: {names}")
    parser.add_argument("--scale", type=float, default=1.0, help="times the records of each workload (1)")
    parser.add_argument("--runs", type=int, default=7, help="runs of each side (7)")
    parser.add_argument("--sides", default=",".join(SIDES), help=f"some of {', '.join(SIDES)} (all)")
    parser.add_argument("--cache", default=f"{HOT},{COLD}", help="page cache before a run: hot,cold")
    parser.add_argument("--master", default=DEFAULT_MASTER, help=f"the Spark master ({DEFAULT_MASTER})")
    parser.add_argument("--real-copies", action="store_true", help="copy closed segments, no hard links")
    parser.add_argument("--folder", type=Path, default=OUT, help="where workloads are produced and kept")
    parser.add_argument("--produce-only", action="store_true", help="produce, and measure nothing")
    parser.add_argument("--json", type=Path, help="write every run to this file")
    arguments = parser.parse_args(command_line)
    try:
        arguments.chosen = [workload.scaled(arguments.scale) for workload in chosen(arguments.workloads)]
        arguments.plan = _plan(arguments)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def _plan(arguments: argparse.Namespace) -> Plan:
    sides, caches = arguments.sides.split(","), arguments.cache.split(",")
    unknown = [*set(sides).difference(SIDES), *set(caches).difference((HOT, COLD))]
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}")
    return Plan(
        runs=arguments.runs,
        sides=sides,
        caches=caches,
        real_copies=arguments.real_copies,
        master=arguments.master,
    )


def _machine() -> dict[str, object]:
    """Where and when, to be written beside the figures."""
    version = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False).stderr
    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": shlex.join(["python", "-m", "bench.beside_kafka", *sys.argv[1:]]),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "java": version.splitlines()[0] if version else "",
        "kafka": kafka_version(),
    }


def _break_even(measured: Sequence[Results], caches: Sequence[str]) -> str:
    sizes = {workload.name for workload in BREAK_EVEN}
    results_by_size = [results for results in measured if results.workload.name in sizes]
    lines = []
    for cache in caches if len(results_by_size) > 1 else ():
        for than, size in break_even(results_by_size, cache).items():
            text = "not in these sizes" if size is None else f"from about {size:,.1f} MB"
            lines.append(f"- {cache}: faster than {than} {text}")
    return "\n".join(["**break-even**", "", *lines]) + "\n" if lines else ""


def main(command_line: Sequence[str] | None = None) -> int:
    """Measure what was chosen; the exit status."""
    arguments = _arguments(command_line)
    machine, measured = _machine(), []
    try:
        for workload in arguments.chosen:
            folder = arguments.folder / f"{workload.name}-{arguments.scale:g}"
            if arguments.produce_only:
                say(f"{workload.name}: {pristine(folder, workload).size / 1e6:,.0f} MB")
                continue
            measured.append(measure(workload, folder, arguments.plan))
            print(markdown(measured[-1]), flush=True)
    except (OtherRecordsError, NotCleanedError) as error:
        sys.stderr.write(f"bench.beside_kafka: {error}\n")
        return 1
    finally:
        if arguments.json is not None:
            document = {**machine, "workloads": [results.to_json() for results in measured]}
            arguments.json.write_text(json.dumps(document, indent=1))
    print(_break_even(measured, arguments.plan.caches), end="")
    print("\n".join(f"- {name}: {value}" for name, value in machine.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

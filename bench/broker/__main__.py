"""The broker beside a real Kafka, with the same clients, in turns: ``python -m bench.broker [--json]``.

::

    sequential   produce requests of one record, one after another (a raw client)
    pipelined    the same, 10 in flight
    produce      kafka-producer-perf-test, records of 100 B and of 1 KB, acks=all
    consume      Java's consumer, assigned, all records of 100 B
    partitions   10,000 partitions: their creation, a start, memory, a stop (only when it is named)
    waiting      produce requests beside 1,000 consumers that wait and 100 that read them, and what 10
                 clients read (only when it is named)
    cleaning     produce requests while the broker's own cleaner works, and without it (only when it is
                 named; without a Kafka)

Both brokers run at the same time, but only one is asked at a time. The client takes about one core, and the
broker has the other; the processor seconds of the broker stand beside each rate.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.broker.cleaning import figures_of_cleaning
from bench.broker.nodes import Node, kafka, siltstone
from bench.broker.partitions import figures_of_partitions
from bench.broker.requests import requests_per_second
from bench.broker.waiting import figures_of_waiting
from tests.support.kafka.jars import java, java_command, kafka_libs

OUT = Path(__file__).parents[1] / "out" / "broker"
READ_ALL = Path(__file__).with_name("ReadAll.java")
IN_FLIGHT, SECONDS, TURNS = 10, 5.0, 3
RECORDS = {100: 3_000_000, 1_000: 400_000}
GOAL = 1.0
_RATE = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec .*99\.9th", re.MULTILINE)


def produce_rate(node: Node, topic: str, size: int) -> float:
    """Records a second of Kafka's own producer-perf-test."""
    command = java_command(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(RECORDS[size]), "--record-size", str(size)),
        *("--throughput", "-1", "--command-property", f"bootstrap.servers={node.address}"),
        heap="512m",
        flags=("-XX:+UseG1GC",),
    )
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    rates = _RATE.findall(completed.stdout)
    assert rates, completed.stdout[-2000:] + completed.stderr[-2000:]
    assert int(rates[-1][0]) == RECORDS[size], completed.stdout[-2000:]
    return float(rates[-1][1])


def consume_rate(node: Node, topic: str, count: int) -> float:
    """Records a second of a Java consumer that is assigned all partitions: the better of two readings."""
    command = [
        java(),
        "-Xmx512m",
        "-cp",
        f"{kafka_libs()}/*",
        str(READ_ALL),
        node.address,
        topic,
        str(count),
        "2",
    ]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[-2000:]
    return max(int(line.split()[0]) / float(line.split()[2]) for line in completed.stdout.splitlines())


def measurements(only: Sequence[str]) -> dict[str, Callable[[Node, int], float]]:
    """What is measured, by name: each takes a node and the number of the turn."""

    def produced(size: int) -> Callable[[Node, int], float]:
        return lambda node, turn: produce_rate(node, f"sent-{size}-{turn}", size)

    measures: dict[str, Callable[[Node, int], float]] = {
        "sequential": lambda node, _: requests_per_second(node.address, "one", in_flight=1, seconds=SECONDS),
        "pipelined": lambda node, _: requests_per_second(
            node.address, "one", in_flight=IN_FLIGHT, seconds=SECONDS
        ),
        "produce 100 B": produced(100),
        "produce 1 KB": produced(1_000),
        "consume 100 B": lambda node, turn: consume_rate(node, f"sent-100-{turn}", RECORDS[100]),
    }
    return {name: measure for name, measure in measures.items() if not only or name.split()[0] in only}


def print_figures(
    figures: dict[str, dict[str, list[float]]],
    *,
    as_json: bool,
    columns: tuple[str, str] = ("Kafka", "Siltstone"),
) -> None:
    """Print the figures of many partitions, of many consumers, or of cleaning."""
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    table = Table("", *columns, "times")
    for name, row in figures.items():
        theirs, ours = (statistics.median(row[column]) for column in columns)
        table.add_row(name, f"{theirs:,.2f}", f"{ours:,.2f}", f"{ours / theirs:.2f}")
    Console(width=100).print(table)


def main() -> None:
    """Measure, print, and keep the figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        help="sequential, pipelined, produce, consume, partitions, waiting, cleaning",
    )
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    if flags.only == ["partitions"]:
        return print_figures(figures_of_partitions(OUT / "partitions", flags.turns), as_json=flags.json)
    if flags.only == ["waiting"]:
        return print_figures(figures_of_waiting(OUT / "waiting", flags.turns), as_json=flags.json)
    if flags.only == ["cleaning"]:
        cleaning = figures_of_cleaning(OUT / "cleaning", flags.turns)
        return print_figures(cleaning, as_json=flags.json, columns=("alone", "while cleaning"))
    figures: dict[str, dict[str, list[float]]] = {}
    with kafka(OUT / "kafka") as theirs, siltstone(OUT / "siltstone") as ours:
        nodes = (theirs, ours)
        for node in nodes:
            node.create_topic("one", 1)
            for size in RECORDS:
                for turn in range(flags.turns):
                    node.create_topic(f"sent-{size}-{turn}", flags.partitions)
        for turn in range(flags.turns):
            for name, measure in measurements(flags.only).items():
                for node in nodes if turn % 2 == 0 else nodes[::-1]:
                    before = node.cpu_seconds()
                    rate = measure(node, turn)
                    row = figures.setdefault(name, {})
                    row.setdefault(node.name, []).append(rate)
                    row.setdefault(f"{node.name} CPU s", []).append(node.cpu_seconds() - before)
        starts = {node.name: node.start_seconds for node in nodes}
        memory = {node.name: node.resident_mb() for node in nodes}
    if flags.json:
        print(json.dumps({"rates": figures, "start_seconds": starts, "resident_mb": memory}, indent=2))
        return
    table = Table("", "Kafka /s", "Siltstone /s", "times", "goal", "Kafka CPU s", "Siltstone CPU s")
    for name, row in figures.items():
        middle = {key: statistics.median(values) for key, values in row.items()}
        ratio = middle["Siltstone"] / middle["Kafka"]
        cpu = (f"{middle[f'{node} CPU s']:.2f}" for node in ("Kafka", "Siltstone"))
        rates = (f"{middle[node]:,.0f}" for node in ("Kafka", "Siltstone"))
        table.add_row(name, *rates, f"{ratio:.2f}", f">= {GOAL}", *cpu)
    console = Console(width=100)
    console.print(table)
    console.print(f"start to first answer, s: {starts}; resident, MB: {memory}")


if __name__ == "__main__":
    main()

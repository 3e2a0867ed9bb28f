"""How long the embedded brokers take to start: ``python -m bench.broker.embedded [--turns 9]``.

::

    in the process     Broker()
    of its own         BrokerProcess(); the first one forks the keeper, too
    with threads       the first BrokerProcess() of a program that has another thread: a new Python

Each start ends when a client has its first answer (ApiVersions). Imports are not counted.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable

from siltstone.broker.embedded import EmbeddedBroker
from siltstone.broker.keeper import keeper
from siltstone.broker.separate import BrokerProcess

_API_VERSIONS = struct.pack("!ihhih", 10, 18, 0, 1, -1)


def seconds_to_answer(make: Callable[[], EmbeddedBroker | BrokerProcess]) -> float:
    """Seconds from the call to a client's first answer."""
    begun = time.perf_counter()
    with make() as broker:
        host, _, port = broker.address.rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(_API_VERSIONS)
            assert client.recv(1)
        return time.perf_counter() - begun


def first_of_a_program() -> float:
    """The same for a broker whose keeper has to be started, too."""
    keeper().end()
    return seconds_to_answer(BrokerProcess)


def beside_a_thread() -> float:
    """The first one of a program with threads."""
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        return first_of_a_program()
    finally:
        is_over.set()
        thread.join()


def main() -> None:
    """Print the medians and the range of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=9)
    turns = range(parser.parse_args().turns)
    for name, measure in {
        "in the process": lambda: seconds_to_answer(EmbeddedBroker),
        "of its own": lambda: seconds_to_answer(BrokerProcess),
        "of its own, the first": first_of_a_program,
        "of its own, the first, with threads": beside_a_thread,
    }.items():
        seconds = [measure() for _ in turns]
        print(f"{name:36} {statistics.median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

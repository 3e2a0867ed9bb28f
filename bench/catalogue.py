"""How long a server's catalogue takes: ``python -m bench.catalogue [TOPICS [PARTITIONS]]``.

Makes a log directory of many small partitions, half of the topics compacted, and looks at it as ``siltstone
serve --look`` does. Prints CPU seconds (user and system) and wall seconds of each step, and the memory.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from siltstone.commands.catalogue import TopicQuery, list_topics
from siltstone.commands.served import Served, ServeOptions

Result = TypeVar("Result")


def make_directory(path: Path, topics: int, partitions: int) -> None:
    """Topics as Siltstone's own, each partition with one empty segment."""
    entries = {}
    for number in range(topics):
        name = f"topic-{number:06d}"
        policy = "compact" if number % 2 else "delete"
        config = {"cleanup.policy": policy}
        ids = list(range(partitions))
        entries[name] = {"id": "AAAAAAAAAAAAAAAAAAAAAA", "partitions": ids, "unmade": [], "config": config}
        for partition in ids:
            folder = path / f"{name}-{partition}"
            folder.mkdir(parents=True)
            (folder / f"{0:020d}.log").write_bytes(b"")
    registry = {"version": 1, "generation": 1, "topics": entries, "deleted": {}}
    (path / "siltstone-topics.json").write_text(json.dumps(registry), "utf-8")
    (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}', "utf-8")


def measured(what: str, act: Callable[[], Result]) -> Result:
    """Do it, and print what it took."""
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    result = act()
    after, ended = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    print(f"{what:40} {cpu:8.3f} s CPU {ended - began:8.3f} s, {after.ru_maxrss >> 10:6} MiB at most")
    return result


def main(topics: int = 10_000, partitions: int = 10) -> None:
    """Make, look, look again, list."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "logs"
        make_directory(path, topics, partitions)
        served = measured("open", lambda: Served(ServeOptions(paths=(path,), is_look=True)))
        with served:
            cataloguer = served.cataloguer
            measured("names only, first page", lambda: list_topics(cataloguer.outline(), TopicQuery()))
            catalogue = measured("first look", cataloguer.refresh)
            assert catalogue.error is None, catalogue.error
            time.sleep(3)  # directories that were made just now are read again
            measured("look again", cataloguer.refresh)
            measured("look again, nothing changed", cataloguer.refresh)
            for number in range(min(100, topics)):
                with (path / f"topic-{number:06d}-0" / f"{0:020d}.log").open("ab") as file:
                    file.write(b"\0" * 100)
            measured("look again, 100 logs appended to", cataloguer.refresh)
            for sort in ("name", "bytes", "state"):
                listing = TopicQuery(sort=sort, descending=True, start=topics // 2)
                measured(f"50 rows by {sort}", lambda: list_topics(cataloguer.current, listing))  # noqa: B023


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

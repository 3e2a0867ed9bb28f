"""Cleans logs that are in use on a session of its own, whose Java process is killed in between.

Run by ``test_embedded_cleaner`` as a process: ``python -m tests.support.spark.embedded_cleaner FOLDER``.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from pyspark import SparkContext

import siltstone as st
from siltstone.base.config import Config, parse_assignments
from siltstone.compaction.report import CLEANED
from siltstone.log.names import TopicPartition
from siltstone.runtime.log_cleaner import LogCleaner
from siltstone.spark.internals import running_session
from tests.support.cleaning.serving import TOPIC, table, write
from tests.support.log import driving

SOON = 120
THEN = 1_700_000_000_000
USERS = TopicPartition("users", 0)
CONFIG = ["log.cleaner.backoff.ms=100", "cleaner.spark.master=local[1]"]


def cleaned(cleaner: LogCleaner, more_than: int) -> None:
    """Wait until more cleanings than that went well."""
    for _ in range(SOON * 10):
        if sum(cleaning.result.status == CLEANED for cleaning in cleaner.cleanings) > more_than:
            return
        threading.Event().wait(0.1)
    raise AssertionError(f"nothing was cleaned; {[cleaning.result.reason for cleaning in cleaner.cleanings]}")


def main(folder: Path) -> None:
    """Clean; kill Java; clean again; close."""
    config = Config(parse_assignments(CONFIG, "test"))
    with st.open(folder, mode="a", config=config) as logs:
        logs.topics.create("users", 2, TOPIC)
        for number in range(2):
            write(logs["users", number], 60, timestamp=THEN)
        cleaner = st.start_cleaner(logs, engine="spark")
        cleaned(cleaner, 1)
        session = running_session()
        assert session is not None and session.sparkContext.master.startswith("local[1")
        before = table(logs[USERS])
        SparkContext._gateway.proc.kill()
        write(logs[USERS], 90, keys=7, timestamp=THEN)
        cleaned(cleaner, 2)
        assert logs.uncleanable == {}
        assert before.keys() <= table(logs[USERS]).keys()
        again = running_session()
        assert again is not None and again is not session
        assert len(driving.read_all(logs[USERS])) < 60
    assert running_session() is None
    sys.stdout.write("cleaned, killed, cleaned\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

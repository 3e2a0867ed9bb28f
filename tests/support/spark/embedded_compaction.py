"""Compacts open logs on a session of its own, beside the cleaner; Java is killed in between.

``test_embedded_compaction`` runs it as ``python -m tests.support.spark.embedded_compaction FOLDER``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

import siltstone as st
from siltstone.base.config import Config, parse_assignments
from siltstone.compaction.report import CLEANED
from siltstone.log.names import TopicPartition
from siltstone.runtime.compactions import ERROR, SUCCESS, Compactions, CompactionStatus
from siltstone.spark.internals import LateSession, running_session
from tests.support.cleaning.serving import TOPIC, table, write
from tests.support.ledger.serving import seen

SOON = 120
THEN = 1_700_000_000_000
USERS = TopicPartition("users", 0)
CONFIG = ["log.cleaner.threads=0", "cleaner.spark.master=local[1]"]


def compacted(compactions: Compactions) -> CompactionStatus:
    """Compact now; what came of it."""
    compactions.trigger("users")
    assert compactions.wait(SOON)
    return compactions.status("users")


def main(folder: Path) -> None:
    """Clean and compact on one session; kill Java; both again; close."""
    config = Config(parse_assignments(CONFIG, "test"))
    with st.open(folder, mode="a", config=config) as logs:
        logs.topics.create("users", 1, TOPIC)
        log = logs[USERS]
        write(log, 60, timestamp=THEN)
        compactions, cleaner = st.start_compaction(logs), st.start_cleaner(logs, engine="spark")
        assert running_session() is None, "nothing is started before it is needed"
        log.flush()  # segments are cleaned once they are durable; a thread flushes rolled ones
        assert [result.status for result in cleaner.clean_once()] == [CLEANED]
        session = running_session()
        assert session is not None and type(session) is LateSession, "a small log is cleaned without SQL"
        assert compacted(compactions).status == SUCCESS
        assert running_session() is session and len(seen(log)) == 5, "both use the one session"
        assert type(session) is SparkSession, "SQL has started when it was first used"
        SparkContext._gateway.proc.kill()
        write(log, 90, keys=7, timestamp=THEN)
        failed = compacted(compactions)
        assert failed.status == ERROR and "engine was lost" in failed.last_error, failed
        assert len(seen(log)) == 5 + 90
        again = compacted(compactions)
        assert again.status == SUCCESS, again
        assert len(seen(log)) == 7 and len(table(log)) == 7
        assert running_session() not in (None, session)
        cleaner.clean_once()
        write(log, 90, keys=7, timestamp=THEN)
        log.flush()
        assert [result.status for result in cleaner.clean_once()] == [CLEANED]
    assert running_session() is None
    sys.stdout.write("compacted, killed, compacted\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

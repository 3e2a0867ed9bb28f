"""A user's program for type checkers, with what they reveal: see ``tests/test_public_face.py``."""

from typing import reveal_type

import siltstone as st


def main() -> None:
    with st.open("/data", mode="a", config={"log.cleaner.threads": 2}) as logs:
        reveal_type(logs)  # reveals: siltstone.commands.library.OpenLogs
        reveal_type(logs["users", 0])  # reveals: siltstone.log.partition.PartitionLog
        reveal_type(
            logs["users"]
        )  # reveals: siltstone.log.read_only.TopicLogs[siltstone.log.partition.PartitionLog]
        reveal_type(logs.send("users", b"v", key=b"k").offset)  # reveals: int
        for record in logs["users"].follow(timeout=1.5):
            reveal_type(record.value)  # reveals: bytes | None
    with st.open("/backup") as backup:
        reveal_type(backup["users", 0])  # reveals: siltstone.log.read_only.ReadOnlyLog
        reveal_type(backup.clean(topic="users", dry_run=True).results[0].status)  # reveals: str
    try:
        st.verify("/a", "/b", topic=["users"], no_spark=True).raise_for_errors()
    except st.errors.CheckFailedError as error:
        reveal_type(error.advice)  # reveals: str | None
    st.no_such_name()

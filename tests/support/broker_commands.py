"""A script of commands whose output at a running broker is what it is for a directory."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.command_line import Command

LINES = b"a:1\nb:2\nc:3\na:4\n"
OFFSETS = (
    '{"partitions": [{"topic": "plain", "partition": 0, "offset": 1}, '
    '{"topic": "users", "partition": 0, "offset": 0}, {"topic": "nope", "partition": 0, "offset": 0}], '
    '"version": 1}'
)
SCRIPT = (
    "topics --create --topic users --partitions 3 --config cleanup.policy=compact",
    "topics --create --topic users",
    "topics --create --topic users --if-not-exists",
    "topics --create --topic a/b",
    "topics --create --topic dry --partitions 2 --dry-run",
    "topics --create --topic dry --partitions 2 --dry-run --json",
    "topics --create --topic plain --json",
    "topics --list",
    "topics --list --topic pl.* --json",
    "produce -t users -K :",
    "produce -t plain -z gzip -H h=1 --json",
    "produce -t plain -p 7",
    "produce -t nope",
    "consume -t users -e -K : -q",
    "consume -t plain -e",
    "consume -t plain -e -o -2 -q -f %o=%s,%h\\n",
    "consume -t plain -e -o 1 -c 2 -q",
    "consume -t plain -e -J -q",
    "consume -t plain -e -o 9",
    "consume -t plain -e -p 9",
    "get-offsets --exclude-internal-topics",
    "get-offsets --topic plain --time earliest --json",
    "get-offsets --topic-partitions users:1-3,plain",
    "get-offsets --topic plain --time 9000000000000",
    "get-offsets --topic nope",
    "log-dirs --describe --topic-list users,plain",
    "log-dirs --describe --topic-list nope",
    "log-dirs",
    "topics --describe",
    "topics --describe --topic nope",
    "topics --alter --topic plain --partitions 3",
    "topics --alter --topic plain --partitions 3",
    "configs --describe --entity-type topics --entity-name users",
    "configs --alter --entity-type topics --entity-name users --add-config flush.ms=5",
    "configs --alter --entity-type topics --entity-name users --delete-config cleanup.policy",
    "configs --alter --entity-type topics --entity-name users --add-config flush.ms=6 --dry-run --json",
    "configs --alter --entity-type topics --entity-name users --add-config flush.ms=x",
    "configs --alter --entity-type topics --entity-name users --delete-config retention.ms",
    "configs --describe --entity-type topics --entity-name plain --json",
    "configs --alter --entity-type topics --entity-name users --add-config cleanup.policy=[compact]",
    "delete-records --offset-json-file OFFSETS --dry-run",
    "delete-records --offset-json-file OFFSETS",
    "get-offsets --time -2 --exclude-internal-topics",
    "topics --delete --topic us.*,plain --dry-run",
    "topics --delete --topic us.*,plain",
    "topics --delete --topic us.*",
    "topics --delete --topic us.* --if-exists",
)
ALONE_IN_A_DIRECTORY = ("directory", "size", "segments", "bytes")


def assert_alike(run: Command, address: str, path: Path) -> None:
    """Run the script at a broker and in a directory of ``path``: statuses, output and codes of errors are
    equal. ``run`` pipes ``LINES`` into each command."""
    offsets = path / "offsets.json"
    offsets.write_text(OFFSETS, "utf-8")
    for line in SCRIPT:
        arguments = [offsets if word == "OFFSETS" else word for word in line.split()]
        at_broker = run(*arguments, "--bootstrap-server", address)
        in_directory = run(*arguments, "--dir", path / "logs")
        assert (line, at_broker.status) == (line, in_directory.status), at_broker.err + in_directory.err
        if "topics --describe" not in line:  # its table has other columns
            assert alike(at_broker.out) == alike(in_directory.out), (line, at_broker.out, in_directory.out)
        assert code_in(at_broker.err) == code_in(in_directory.err), line


def alike(out: bytes) -> str:
    """Output without ids, times, and what only one of the two can say."""
    text = out.decode()
    for name in ALONE_IN_A_DIRECTORY:
        text = re.sub(rf'"{name}": [^,}}\]]+(, )?', "", text)
    text = re.sub(r'"(leader|replicas|isr)": ([0-9]+|null|\[[^]]*\])(, )?', "", text)
    text = re.sub(r"error: .*\(", "error: (", text)
    text = re.sub(r'"topic_id": "[\w-]{22}"', '"topic_id": ID', text)
    text = re.sub(r"TopicId: [\w-]{22}", "TopicId: ID", text)
    text = re.sub(r'"broker": \d+', '"broker": NUMBER', text)
    text = re.sub(r'"logDir": "[^"]*"', '"logDir": PATH', text)
    return re.sub(r'"ts": \d{13}', '"ts": NOW', text)


def code_in(err: str) -> str | None:
    """The code of an error's line."""
    match = re.search(r"\(([A-Z_]+)\)$", err.strip())
    return match and match[1]

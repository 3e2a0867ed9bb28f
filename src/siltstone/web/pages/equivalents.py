"""The command lines below a form that do the same: a ``siltstone`` command on the directories, which needs
their lock for a change, so that the server has to be stopped; and a ``curl`` request to this server."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request

from siltstone.commands.catalogue import TopicRow
from siltstone.commands.cleaner_lists import QueueRow, UncleanableRow
from siltstone.commands.cluster import cluster_identity
from siltstone.commands.sending import ProducerRecord
from siltstone.commands.served import Served
from siltstone.web.guards import user_of
from siltstone.web.pages.rendering import path

_ARGUMENT_MAX_BYTES = 100_000
"""Linux takes up to 128 KiB as one argument of a command."""


def shell(*words: object) -> str:
    """A command line: each word as one argument."""
    return " ".join(shlex.quote(str(word)) for word in words)


def siltstone(served: Served, *words: object) -> str:
    """A command on the directories of this server."""
    return shell("siltstone", *words, *(f"--dir={directory}" for directory in served.paths))


def curl(request: Request, method: str, url: str, body: Mapping[str, Any] | None = None) -> str:
    """A request to this server, ``url`` from its root on."""
    words = ["curl", "-X", method, f"{str(request.base_url).rstrip('/')}{url}"]
    if request.app.state.rules.identity.auth == "basic":
        words[1:1] = ["-u", user_of(request).name]
    if body is not None:
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return shell(*words)


def cluster_url(served: Served, *parts: object) -> str:
    """A path of Confluent's API."""
    return "/".join(["/v3/clusters", *map(path, (cluster_identity(served).cluster_id, *parts))])


def produce_command(served: Served, topic: str, record: ProducerRecord) -> str | None:
    """A command line that appends the record. None if no command does: for a header that is no text or has =
    in its name, a tombstone of an empty key, or bytes with all, or all but one, of the 256 byte values."""
    words = ["produce", "--topic", topic]
    words += [] if record.partition is None else [f"--partition={record.partition}"]
    words += ["--null"] if record.value is None else []
    for name, content in record.headers:
        name_text, header = _text_of(name.encode("utf-8", "surrogatepass")), _text_of(content or b"")
        if not name_text or "=" in name_text or header is None:
            return None
        words.append(f"--header={name_text}={header}")
    if record.value is None and record.key == b"":  # --null makes the key null, too
        return None
    key, value = _text_of(record.key or b""), _text_of(record.value or b"")
    if key is not None and value is not None and "\n" not in value:
        words += [] if record.key is None else [f"--key={key}"]
        return " | ".join((shell("printf", r"%s\n", value), siltstone(served, *words)))
    return _produce_bytes(served, record, words)


def _produce_bytes(served: Served, record: ProducerRecord, words: Sequence[str]) -> str | None:
    """``words`` with the record in base64. Of two byte values that the record does not have, one separates
    key and value, and the other is the delimiter after the record."""
    content = record.value or b""
    unused = sorted(set(range(256)).difference(record.key or b"", content))
    if len(unused) < 2:
        return None
    flags = [rf"--delimiter=\x{unused[0]:02x}"]
    if record.key is not None:
        content = b"".join((record.key, bytes(unused[1:2]), content))
        flags.append(rf"--key-delimiter=\x{unused[1]:02x}")
    data = base64.b64encode(content).decode()
    return " | ".join((shell("printf", "%s", data), "base64 -d", siltstone(served, *words, *flags)))


def _text_of(data: bytes) -> str | None:
    """``data`` as an argument of a command; None if it cannot be one."""
    if len(data) > _ARGUMENT_MAX_BYTES or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def topic_setting(
    request: Request, served: Served, topic: str, name: str, value: str, *, default: bool
) -> Sequence[str]:
    """A change of one setting of a topic: to ``value``, or with ``default`` the removal of its own value."""
    option = f"--delete-config={name}" if default else f"--add-config={name}={_bracketed(value)}"
    words = ("configs", "--alter", "--entity-type=topics", f"--entity-name={topic}", option)
    url = cluster_url(served, "topics", topic, "configs", name)
    return (
        siltstone(served, *words),
        curl(request, "DELETE", url) if default else curl(request, "PUT", url, {"value": value}),
    )


def more_partitions(request: Request, served: Served, topic: str, count: int) -> Sequence[str]:
    """A higher number of partitions."""
    words = ("topics", "--alter", "--topic", topic, "--partitions", count)
    url = cluster_url(served, "topics", topic)
    return siltstone(served, *words), curl(request, "PATCH", url, {"partitions_count": count})


def topic_deletion(request: Request, served: Served, topic: str) -> Sequence[str]:
    """The deletion of a topic."""
    words = ("topics", "--delete", "--topic", topic)
    return siltstone(served, *words), curl(request, "DELETE", cluster_url(served, "topics", topic))


def cleaning_of_topic(request: Request, served: Served, row: TopicRow) -> Sequence[str]:
    """A dry run of a topic, and its cleaning if it is compacted."""
    url = f"/api/v1/topics/{path(row.name)}"
    dry_run = shell("siltstone", "clean", *served.paths, "--topic", row.name, "--dry-run")
    clean = [curl(request, "POST", f"{url}:clean", {"force": False})] if row.may_be_compacted else []
    return [dry_run, curl(request, "POST", f"{url}:explain", {}), *clean]


def log_actions(request: Request, row: QueueRow | UncleanableRow, *actions: str) -> Sequence[str]:
    """The requests of the buttons in a log's row. (No command does the same to one log of a running
    server.)"""
    partition = row.topic_partition.partition
    url = f"/api/v1/topics/{path(row.topic_partition.topic)}"
    clean = {"force": True, "partitions": [partition]}
    return [
        curl(request, "POST", f"{url}:clean", clean)
        if action == "clean"
        else curl(request, "POST", f"{url}/partitions/{partition}:{action}")
        for action in actions
    ]


def _bracketed(value: str) -> str:
    """A setting's value as ``--add-config`` takes it: a list in brackets, since commas separate settings."""
    return f"[{value}]" if "," in value else value

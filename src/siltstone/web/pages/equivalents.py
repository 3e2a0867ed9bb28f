"""What does the same as a form: a command for elsewhere, and a ``curl`` line to this server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request

from siltstone.commands.catalogue import TopicRow
from siltstone.commands.cleaner_lists import QueueRow, UncleanableRow
from siltstone.commands.cluster import cluster_identity
from siltstone.commands.served import Served
from siltstone.web.guards import user_of
from siltstone.web.pages.rendering import path


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


def topic_setting(
    request: Request, served: Served, topic: str, name: str, value: str, *, default: bool
) -> Sequence[str]:
    """A change of one setting of a topic."""
    option = f"--delete-config={name}" if default else f"--add-config={name}={_list(value)}"
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
    """What the buttons of a log's row do: no command does it to one log of a running server."""
    partition = row.topic_partition.partition
    url = f"/api/v1/topics/{path(row.topic_partition.topic)}"
    clean = {"force": True, "partitions": [partition]}
    return [
        curl(request, "POST", f"{url}:clean", clean)
        if action == "clean"
        else curl(request, "POST", f"{url}/partitions/{partition}:{action}")
        for action in actions
    ]


def _list(value: str) -> str:
    """A list in the form that ``--add-config`` takes."""
    return f"[{value}]" if "," in value else value

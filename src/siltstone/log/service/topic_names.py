"""Names and ids of topics, and names of what is left of them (Kafka's ``Topic``, ``Uuid`` and ``LocalLog``).

::

    orders                              letters, digits, '.', '_', '-'; at most 249; neither '.' nor '..'
    kLhQkZ_dTQCU8PsWACbD0Q              an id: 16 bytes in URL-safe base64 without padding, no '-' in front
    orders-0.8b3f…(32 hex)-delete       the directory of a deleted partition until it is removed
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Callable, Iterable

from siltstone.errors import InvalidTopicError
from siltstone.log.names import CLUSTER_METADATA, TopicPartition

RandomBytes = Callable[[int], bytes]
"""So many random bytes; ``secrets.token_bytes`` outside of tests."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_LONGEST = 249
_LONGEST_FILE_NAME = 255
_DELETED = re.compile(r".*-\d+\.[0-9a-f]{32}-delete\Z", re.ASCII)
_RESERVED_ID_NUMBERS = (0, 1)


def refuse_bad_name(name: str) -> None:
    """Raises InvalidTopicError for a name that Kafka does not allow."""
    why = None
    if not name:
        why = "a topic's name cannot be empty"
    elif name in (".", ".."):
        why = "a topic's name cannot be '.' or '..'"
    elif len(name) > _LONGEST:
        why = f"a topic's name has at most {_LONGEST} characters, this one {len(name)}"
    elif not _LEGAL.fullmatch(name):
        why = "a topic's name has only letters, digits, '.', '_' and '-'"
    elif name == CLUSTER_METADATA:
        why = "that is the log of a cluster's metadata"
    if why:
        raise InvalidTopicError(f"{name[:_LONGEST]!r}: {why}")


def refuse_collision(name: str, others: Iterable[str]) -> None:
    """Raises InvalidTopicError where another name differs only in '.' and '_', which metrics take for one."""
    plain = name.replace(".", "_")
    for other in others:
        if other != name and other.replace(".", "_") == plain:
            raise InvalidTopicError(f"{name!r}: differs from {other!r} only in '.' and '_'; choose another")


def new_id(random_bytes: RandomBytes) -> str:
    """A fresh id for a topic, a directory or a cluster: 22 characters, no '-' in front."""
    while True:
        made = uuid.UUID(bytes=random_bytes(16), version=4)
        text = base64.urlsafe_b64encode(made.bytes).decode().rstrip("=")
        if not text.startswith("-") and made.int not in _RESERVED_ID_NUMBERS:
            return text


def partition_metadata(topic_id: str) -> bytes:
    """The content of ``partition.metadata``."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def deleted_directory(where: TopicPartition, random_bytes: RandomBytes) -> str:
    """The name that a deleted partition's directory has until it is removed; a long topic's is cut off."""
    suffix = f"-{where.partition}.{random_bytes(16).hex()}-delete"
    return where.topic[: _LONGEST_FILE_NAME - len(suffix)] + suffix


def is_deleted_directory(name: str) -> bool:
    """Is it the directory of a partition that was deleted?"""
    return _DELETED.match(name) is not None

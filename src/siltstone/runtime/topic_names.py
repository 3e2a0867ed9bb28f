"""Names and ids of topics, names of deleted directories (Kafka's ``Topic``, ``Uuid``, ``LocalLog``).

::

    orders                              letters, digits, '.', '_', '-'; at most 249; neither '.' nor '..'
    kLhQkZ_dTQCU8PsWACbD0Q              an id: 16 bytes in URL-safe base64, no padding, no '-' at the start
    orders-0.8b3f…(32 hex)-delete       the directory of a deleted partition until it is removed
"""

from __future__ import annotations

import base64
import contextlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping

from siltstone.base.config import find_topic_key, parse_topic_config
from siltstone.base.errors import (
    InvalidConfigError,
    InvalidTopicError,
    UnknownConfigError,
    UnknownSettingError,
    UnknownTopicError,
    UsageError,
)
from siltstone.log.names import CLUSTER_METADATA, TopicPartition

RandomBytes = Callable[[int], bytes]
"""Returns as many random bytes as its argument says; ``secrets.token_bytes``, except in tests."""

ID_BYTES = 16
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_MAX_LENGTH = 249
_MAX_FILE_NAME_LENGTH = 255
_DELETED_DIRECTORY = re.compile(r".*-\d+\.[0-9a-f]{32}-delete\Z", re.ASCII)


def refuse_bad_name(name: str) -> None:
    """Raises InvalidTopicError for a name that Kafka does not allow."""
    rules = (
        (not name, "the empty string is not allowed"),
        (name in (".", ".."), "'.' and '..' are not allowed"),
        (len(name) > _MAX_LENGTH, f"its length, {len(name)}, is over {_MAX_LENGTH}"),
        (
            not _LEGAL_NAME.fullmatch(name),
            "it has characters other than ASCII letters, digits, '.', '_' and '-'",
        ),
        (name == CLUSTER_METADATA, "it is reserved for the cluster's metadata log"),
    )
    for is_broken, reason in rules:
        if is_broken:
            raise InvalidTopicError(
                f"topic name {name[:_MAX_LENGTH]!r} is invalid: {reason}", advice="choose another name"
            )


def refuse_collision(name: str, existing: Iterable[str]) -> None:
    """Raise InvalidTopicError if a topic of ``existing`` differs from ``name`` only in '.' and '_': Kafka's
    metrics replace '.' by '_', so the two topics would have the same metrics."""
    for other in existing:
        if other != name and other.replace(".", "_") == name.replace(".", "_"):
            raise InvalidTopicError(
                f"topic {name!r} collides with topic {other!r}: they differ only in '.' and '_'",
                advice="choose another name",
            )


def new_id(random_bytes: RandomBytes) -> str:
    """A new id for a topic, a directory or a cluster: 22 characters, not beginning with '-'."""
    while True:
        # A UUID of version 4 is never one of Kafka's reserved ids, 0 and 1: it has version bits.
        number = uuid.UUID(bytes=random_bytes(16), version=4)
        text = base64.urlsafe_b64encode(number.bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def id_bytes(topic_id: str) -> bytes:
    """The 16 bytes of an id, as the protocol has it. Raises ValueError."""
    number = base64.urlsafe_b64decode(topic_id + "==")
    if len(number) != ID_BYTES:
        raise ValueError(f"{topic_id!r} is no id of {ID_BYTES} bytes")
    return number


def partition_metadata(topic_id: str) -> bytes:
    """The content of ``partition.metadata``."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def deleted_directory(topic_partition: TopicPartition, random_bytes: RandomBytes) -> str:
    """The name that a deleted partition's directory has until it is removed. A long topic name is cut off."""
    suffix = f"-{topic_partition.partition}.{random_bytes(16).hex()}-delete"
    return topic_partition.topic[: _MAX_FILE_NAME_LENGTH - len(suffix)] + suffix


def is_deleted_directory(name: str) -> bool:
    """Is ``name`` that of a deleted partition's directory?"""
    return _DELETED_DIRECTORY.match(name) is not None


# Pulsar's names of topics and namespaces (``TopicName``, ``NamespaceName``), and the topics in the log
# directories that they name.
#
# ::
#
#     persistent://tenant/namespace/name                the topic tenant.namespace.name
#     persistent://public/default/name                  the topic name
#     persistent://tenant/namespace/name-partition-3    its partition 3
#     persistent://tenant-namespace/name                the topic tenant.namespace.name, split at the hyphen
#                                                       with which there is such a topic
#     name                                              the topic of that name
#
# A namespace is the text ``tenant/namespace``. The parts of a topic name before the first and the second dot
# are its tenant and its namespace; a name with fewer dots is in ``public/default``. So tenants and namespaces
# have no dots, and ``persistent://public/default/com.acme.users`` is the topic
# ``persistent://com/acme/users``, too.

NAMESPACE_KEYS = ("compactionThreshold",)
"""The policies that a namespace can set for its topics."""
DEFAULT_NAMESPACE = "public/default"
_SCHEME = "persistent://"
_NAMESPACE = re.compile(r"[A-Za-z0-9_-]+/[A-Za-z0-9_-]+", re.ASCII)
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9]\d{0,9})\Z", re.ASCII | re.DOTALL)


def refuse_bad_namespace(name: str) -> None:
    """Raises UsageError for a text that is not ``tenant/namespace``."""
    if not _NAMESPACE.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a namespace",
            advice="pass tenant/namespace; both consist of letters, digits, '_' and '-'",
        )


def namespace_of(topic: str) -> str:
    """The namespace that a topic is in."""
    parts = topic.split(".", 2)
    return f"{parts[0]}/{parts[1]}" if len(parts) == 3 and all(parts) else DEFAULT_NAMESPACE


def persistent_name(topic: str) -> str:
    """Pulsar's name of a topic."""
    namespace = namespace_of(topic)
    name = topic if namespace == DEFAULT_NAMESPACE else topic.split(".", 2)[2]
    return f"{_SCHEME}{namespace}/{name}"


def find_partitions(text: str, existing: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The partitions among ``existing`` that the name ``text`` stands for: all of a topic, or a single one.

    If a topic has exactly that name, the name is the topic's, even if it ends like ``-partition-1``. Raises
    UsageError for a text that is not the name of a persistent topic, and for a short form that matches
    several topics; UnknownTopicError.
    """
    names, existing = list(dict.fromkeys(_possible_names(text))), list(existing)
    matching = [topic_partition for topic_partition in existing if topic_partition.topic in names]
    if not matching:
        parsed = filter(None, map(_PARTITION.match, names))
        named = {TopicPartition(match[1], int(match[2])) for match in parsed}
        matching = [topic_partition for topic_partition in existing if topic_partition in named]
    topics = dict.fromkeys(topic_partition.topic for topic_partition in matching)
    if len(topics) > 1:
        raise UsageError(
            f"{text!r} matches several topics",
            advice=f"pass one of: {', '.join(map(persistent_name, topics))}",
        )
    if not topics:
        topic_name = "" if names == [text] else f" ({names[0]})"
        raise UnknownTopicError(f"the log directories have no topic {text!r}{topic_name}")
    return matching


def _possible_names(text: str) -> Iterator[str]:
    """The topic names that ``text`` can stand for. Raises UsageError."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        yield text
        return
    if scheme == "non-persistent":
        raise UsageError(
            f"{text!r} is not persistent: a topic that is not stored cannot be compacted",
            advice="pass the name of a persistent topic",
        )
    parts = rest.split("/")
    if f"{scheme}://" != _SCHEME or not 2 <= len(parts) <= 3 or not all(parts):
        raise UsageError(
            f"{text!r} is not a topic name of Pulsar's",
            advice=f"pass {_SCHEME}tenant/namespace/name, or the topic's name in the log directories",
        )
    *namespace, name = parts
    if len(namespace) == 2:
        refuse_bad_namespace("/".join(namespace))
        yield _topic_name("/".join(namespace), name)
        return
    # ``tenant-namespace``: split at each of its hyphens in turn; then not split, as a namespace of its own.
    for hyphen in re.finditer("-", namespace[0]):
        split = f"{namespace[0][: hyphen.start()]}/{namespace[0][hyphen.end() :]}"
        if _NAMESPACE.fullmatch(split):
            yield _topic_name(split, name)
    yield f"{namespace[0]}.{name}"


def _topic_name(namespace: str, name: str) -> str:
    """The name in the log directories of Pulsar's topic ``name`` in ``tenant/namespace``."""
    return name if namespace == DEFAULT_NAMESPACE else f"{namespace.replace('/', '.')}.{name}"


@contextlib.contextmanager
def bad_settings_are_invalid_config(path: str) -> Iterator[None]:
    """Raises a UsageError of the block again as Kafka's InvalidConfigError, for an unknown setting as
    UnknownConfigError; ``path`` says whose settings these are, if the error does not."""
    try:
        yield
    except UsageError as error:
        kind = UnknownConfigError if isinstance(error, UnknownSettingError) else InvalidConfigError
        raise kind(
            error.reason,
            path=error.path or path,
            advice=error.advice or "docs/configuration.md lists the settings and their values",
        ) from None


def altered_texts(
    before: Mapping[str, str], set_to: Mapping[str, str], remove: Iterable[str], source: str
) -> dict[str, str]:
    """The settings ``before`` (name → text), after those in ``set_to`` were set and those in ``remove``
    removed. If a setting has several names, any of them sets or removes it.

    ``source``: whose settings they are, for errors. Raises InvalidConfigError for an unknown or invalid one.
    """
    with bad_settings_are_invalid_config(source):
        parse_topic_config(set_to, source)
        changed = {find_topic_key(key).name for key in (*remove, *set_to)}
    unchanged = {key: text for key, text in before.items() if find_topic_key(key).name not in changed}
    return {**unchanged, **set_to}


def altered_policies(
    before: Mapping[str, str], set_to: Mapping[str, str], remove: Iterable[str], namespace: str
) -> dict[str, str]:
    """A namespace's policies, altered as by ``altered_texts``. Raises InvalidConfigError."""
    remove, source = tuple(remove), f"namespace {namespace}"
    after = altered_texts(before, set_to, remove, source)
    not_allowed = sorted(key for key in (*set_to, *remove) if key not in NAMESPACE_KEYS)
    if not_allowed:
        raise InvalidConfigError(
            f"{', '.join(not_allowed)} cannot be set for a namespace",
            path=source,
            advice=f"set {', '.join(NAMESPACE_KEYS)} only",
        )
    return after

"""Settings: described with sources and synonyms, altered one by one or all at once."""

from __future__ import annotations

from typing import Any

from tests.support.broker_twin.scenes.scene import NODE
from tests.support.broker_twin.schemas import Message
from tests.support.broker_twin.side import (
    ALTER_CONFIGS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
    Side,
)

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
OF_BROKER = (
    "log.retention.ms",
    "num.partitions",
    "log.cleaner.threads",
    "message.max.bytes",
    "log.segment.ms",
)
DYNAMIC = "log.index.interval.bytes"


def describe_configs(side: Side, versions: range) -> None:
    """Of a topic with some settings, one without, of the broker, and of what is not there."""
    side.create("configs-some", configs={"retention.ms": "99000", "cleanup.policy": "compact,delete"})
    side.create("configs-none")
    for version in versions:

        def ask(what: str, kind: int, name: str, *keys: str, version: int = version, **options: bool) -> None:
            resource = _described(kind, name, list(keys) or None)
            side.ask(what, DESCRIBE_CONFIGS, version, resources=[resource], **options)

        ask("some", TOPIC, "configs-some")
        ask("none", TOPIC, "configs-none")
        ask("synonyms", TOPIC, "configs-some", include_synonyms=True)
        ask("synonyms of none", TOPIC, "configs-none", include_synonyms=True)
        ask("two", TOPIC, "configs-some", "retention.ms", "segment.bytes", include_synonyms=True)
        ask("unknown key", TOPIC, "configs-some", "retention.ms", "no.such")
        if version >= 3:
            ask("documentation", TOPIC, "configs-some", "retention.ms", include_documentation=True)
        ask("broker", BROKER, str(NODE), *OF_BROKER)
        ask("broker's synonyms", BROKER, str(NODE), *OF_BROKER, include_synonyms=True)
        _of_logs(side, version)
        ask("broker's unknown key", BROKER, str(NODE), "no.such")
        ask("default broker", BROKER, "", *OF_BROKER)
        ask("unknown broker", BROKER, "7")
        ask("no number", BROKER, "seven")
        ask("unknown topic", TOPIC, "configs-nothing")
        ask("bad topic", TOPIC, "a/b")
        ask("unknown kind", 3, "x")
        no_keys = _described(TOPIC, "configs-some", [])
        resources = [_described(TOPIC, "configs-none", ["retention.ms"]), _described(3, "x", None)]
        side.ask("unknown kind beside a topic", DESCRIBE_CONFIGS, version, resources=resources)
        side.ask("no keys", DESCRIBE_CONFIGS, version, resources=[no_keys])
        side.ask("no resources", DESCRIBE_CONFIGS, version, resources=[])
        twice = [_described(TOPIC, "configs-none", ["retention.ms"])] * 2
        side.ask("twice", DESCRIBE_CONFIGS, version, resources=twice)


def _of_logs(side: Side, version: int) -> None:
    """All settings of the broker that are about logs, but for those that the two do not share."""
    resource = _described(BROKER, str(NODE), None)
    (result,) = side.quietly(DESCRIBE_CONFIGS, version, resources=[resource], include_synonyms=True)[
        "results"
    ]
    unshared = ("log.dir", "log.cleaner.enable", "log.remote", "log.local")
    configs = [
        config
        for config in result["configs"]
        if config["name"].startswith("log.") and not config["name"].startswith(unshared)
    ]
    side.keep(f"settings of logs v{version}", {**result, "configs": configs})


def _described(kind: int, name: str, keys: list[str] | None) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}


def incremental_alter_configs(side: Side, versions: range) -> None:
    """SET, DELETE, APPEND, SUBTRACT, and what is refused."""
    for version in versions:
        topic = f"incremental-{version}"
        side.create(topic, configs={"segment.ms": "70000"})
        _refused_operations(side, version, topic)

        def ask(what: str, *changes: dict[str, Any], version: int = version, topic: str = topic) -> None:
            resources = [_changed(TOPIC, topic, *changes)]
            side.ask(what, INCREMENTAL_ALTER_CONFIGS, version, resources=resources)

        checked = [_changed(TOPIC, topic, _change("retention.ms", SET, "77"))]
        side.ask("checked", INCREMENTAL_ALTER_CONFIGS, version, resources=checked, validate_only=True)
        side.ask("no resources", INCREMENTAL_ALTER_CONFIGS, version, resources=[])
        ask("no changes")
        ask("append", _change("cleanup.policy", APPEND, "compact"))
        ask("append again", _change("cleanup.policy", APPEND, "compact"))
        ask("subtract", _change("cleanup.policy", SUBTRACT, "delete"))
        ask("subtract what is not there", _change("cleanup.policy", SUBTRACT, "delete"))
        ask("set", _change("retention.ms", SET, "88000"), _change("max.message.bytes", SET, "2000"))
        ask("delete", _change("segment.ms", DELETE), _change("flush.ms", DELETE))
        expected = {"retention.ms": "88000", "cleanup.policy": "compact", "segment.ms": "604800000"}
        _described_when(side, f"topic after v{version}", topic, expected)
    _of_broker(side, versions[-1])


def _refused_operations(side: Side, version: int, topic: str) -> None:
    retention = _change("retention.ms", SET, "1000")
    cases = {
        "unknown topic": _changed(TOPIC, "incremental-none", retention),
        "bad topic": _changed(TOPIC, "a/b", retention),
        "empty topic": _changed(TOPIC, "", retention),
        "unknown key": _changed(TOPIC, topic, _change("no.such", SET, "1")),
        "unknown key deleted": _changed(TOPIC, topic, _change("no.such", DELETE)),
        "bad value": _changed(TOPIC, topic, _change("retention.ms", SET, "soon")),
        "too small": _changed(TOPIC, topic, _change("retention.ms", SET, "-5")),
        "null": _changed(TOPIC, topic, _change("retention.ms", SET, None)),
        "key twice": _changed(TOPIC, topic, retention, retention),
        "unknown operation": _changed(TOPIC, topic, _change("retention.ms", 9, "1000")),
        "append to a number": _changed(TOPIC, topic, _change("retention.ms", APPEND, "1")),
        "subtract from a number": _changed(TOPIC, topic, _change("retention.ms", SUBTRACT, "1")),
        "append a bad word": _changed(TOPIC, topic, _change("cleanup.policy", APPEND, "shred")),
        "unknown broker": _changed(BROKER, "7", _change(DYNAMIC, SET, "1000")),
        "no number": _changed(BROKER, "seven", _change(DYNAMIC, SET, "1000")),
        "read-only": _changed(BROKER, str(NODE), _change("log.dirs", SET, "/elsewhere")),
        "unknown kind": _changed(3, "x", retention),
        **_two_errors(),
    }
    for what, resource in cases.items():
        side.ask(what, INCREMENTAL_ALTER_CONFIGS, version, resources=[resource])
    checked = {
        "throttled replicas": _change("leader.replication.throttled.replicas", SET, "abc"),
        "small segments": _change("segment.bytes", SET, "20000"),
        "tiny segments": _change("segment.bytes", SET, "0"),
        "append nothing": _change("cleanup.policy", APPEND, ""),
    }
    for what, change in checked.items():
        resources = [_changed(TOPIC, topic, change)]
        side.ask(what, INCREMENTAL_ALTER_CONFIGS, version, resources=resources, validate_only=True)
    repeated = _changed(TOPIC, topic, retention)
    side.ask("resource twice", INCREMENTAL_ALTER_CONFIGS, version, resources=[repeated, repeated])


def _two_errors() -> dict[str, dict[str, Any]]:
    """Which of two errors: of operations and nulls, of the name, of settings, of the topic."""
    bad = _change("retention.ms", SET, "soon")
    wrong = _change("retention.ms", APPEND, "1")
    return {
        f"{what} of {name or 'no name'!r}": _changed(TOPIC, name, change)
        for name in ("incremental-none", "a/b", "")
        for what, change in (
            ("bad value", bad),
            ("unknown key", _change("no.such", SET, "1")),
            ("list operation", wrong),
            ("null", _change("retention.ms", SET, None)),
            ("appended word", _change("cleanup.policy", APPEND, "compact")),
            ("deletion", _change("retention.ms", DELETE)),
        )
    }


def _of_broker(side: Side, version: int) -> None:
    """A dynamic setting of this broker and of all brokers, and back."""
    for what, name in (("this broker", str(NODE)), ("all brokers", "")):
        for operation, value in ((SET, "345"), (DELETE, None)):
            resources = [_changed(BROKER, name, _change(DYNAMIC, operation, value))]
            side.ask(f"{what} {operation}", INCREMENTAL_ALTER_CONFIGS, version, resources=resources)

            def is_applied(value: str | None = value) -> bool:
                (config,) = _of(side, BROKER, str(NODE), [DYNAMIC])
                return bool((config["value"] == "345") == (value == "345"))

            side.until(is_applied, f"{DYNAMIC} of {what}")
            described = _described(BROKER, str(NODE), [DYNAMIC])
            side.ask(
                f"described {what} {operation}",
                DESCRIBE_CONFIGS,
                4,
                resources=[described],
                include_synonyms=True,
            )


def alter_configs(side: Side, versions: range) -> None:
    """The old API: what is not named loses its setting."""
    for version in versions:
        topic = f"altered-{version}"
        side.create(topic, configs={"segment.ms": "70000", "retention.ms": "5000"})
        settings = [{"name": "retention.ms", "value": "99000"}]
        cases = {
            "unknown topic": _resource(TOPIC, "altered-none", settings),
            "bad topic": _resource(TOPIC, "a/b", settings),
            "unknown key": _resource(TOPIC, topic, [{"name": "no.such", "value": "1"}]),
            "bad value": _resource(TOPIC, topic, [{"name": "retention.ms", "value": "soon"}]),
            "null": _resource(TOPIC, topic, [{"name": "retention.ms", "value": None}]),
            "key twice": _resource(TOPIC, topic, settings * 2),
            "unknown broker": _resource(BROKER, "7", [{"name": DYNAMIC, "value": "1"}]),
            "unknown kind": _resource(3, "x", settings),
        }
        for name in ("altered-none", "a/b", ""):
            for key, value in (("no.such", "1"), ("retention.ms", "soon"), ("retention.ms", None)):
                invalid = [{"name": key, "value": value}]
                cases[f"{key}={value} of {name or 'no name'!r}"] = _resource(TOPIC, name, invalid)
        for what, resource in cases.items():
            side.ask(what, ALTER_CONFIGS, version, resources=[resource])
        valid = _resource(TOPIC, topic, settings)
        # Kafka 4.3 never answers a request that names a resource twice.
        side.ask("checked", ALTER_CONFIGS, version, resources=[valid], validate_only=True)
        side.ask("no resources", ALTER_CONFIGS, version, resources=[])
        side.ask("set", ALTER_CONFIGS, version, resources=[valid])
        expected = {"retention.ms": "99000", "segment.ms": "604800000"}
        _described_when(side, f"topic after v{version}", topic, expected)


def list_config_resources(side: Side, versions: range) -> None:
    """Names that have settings; only this scene's topics are compared."""
    side.create("listed-some", configs={"retention.ms": "99000"})
    side.create("listed-none")
    for version in versions:
        for what, kinds in (("all", []), ("topics", [TOPIC]), ("brokers", [BROKER])):
            answer = side.quietly(LIST_CONFIG_RESOURCES, version, resource_types=kinds)
            named = [resource for resource in answer["config_resources"] if _is_of_this_scene(resource)]
            side.keep(f"{what} v{version}", {**answer, "config_resources": named})
        for what, kind in (("client metrics", CLIENT_METRICS), ("groups", GROUP), ("unknown kind", 3)):
            side.ask(what, LIST_CONFIG_RESOURCES, version, resource_types=[kind])


def _is_of_this_scene(resource: Message) -> bool:
    return resource.get("resource_type", TOPIC) != TOPIC or resource["resource_name"].startswith("listed-")


def _described_when(side: Side, what: str, topic: str, expected: dict[str, str]) -> None:
    """Describe a topic once its settings are what they should come to."""

    def is_applied() -> bool:
        configs = {config["name"]: config["value"] for config in _of(side, TOPIC, topic, None)}
        return all(configs.get(name) == value for name, value in expected.items())

    side.until(is_applied, f"settings of {topic}")
    resources = [_described(TOPIC, topic, None)]
    side.ask(what, DESCRIBE_CONFIGS, 4, resources=resources, include_synonyms=True)


def _of(side: Side, kind: int, name: str, keys: list[str] | None) -> list[Message]:
    answer = side.quietly(DESCRIBE_CONFIGS, 4, resources=[_described(kind, name, keys)])
    return list(answer["results"][0]["configs"])


def _change(name: str, operation: int, value: str | None = None) -> dict[str, Any]:
    return {"name": name, "config_operation": operation, "value": value}


def _changed(kind: int, name: str, *changes: dict[str, Any]) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configs": list(changes)}


def _resource(kind: int, name: str, settings: list[dict[str, Any]]) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configs": settings}

"""``python scripts/wire_messages.py kafka-clients-4.3.0.jar``: the messages that the broker understands.

Kafka's clients carry the definitions of all messages (``common/message/*.json``). This writes a module with
the classes of each API into ``src/siltstone/broker/wire/messages``, and the table of versions into
``apis.py``. ``tests/broker/wire/test_messages.py`` compares both with a second source.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIRE = Path(__file__).resolve().parents[1] / "src/siltstone/broker/wire"
APIS = (
    "Produce Fetch ListOffsets Metadata ApiVersions CreateTopics DeleteTopics DeleteRecords InitProducerId "
    "OffsetForLeaderEpoch DescribeConfigs AlterConfigs DescribeLogDirs CreatePartitions "
    "ElectLeaders IncrementalAlterConfigs AlterPartitionReassignments ListPartitionReassignments "
    "DescribeCluster ListConfigResources DescribeTopicPartitions DescribeClientQuotas AlterClientQuotas "
    "DescribeUserScramCredentials AlterReplicaLogDirs DescribeQuorum UpdateFeatures"
).split()
_EVERY_LATER = 32767
_TYPES = {
    "bool": "bool",
    "string": "str",
    "uuid": "bytes",
    "bytes": "bytes",
    "records": "Records",
    "float64": "float",
}
_DEFAULTS = {
    "bool": "False",
    "string": '""',
    "uuid": "ZERO_ID",
    "bytes": 'b""',
    "records": 'b""',
    "float64": "0.0",
}
_APIS_HEAD = '''\
"""The table of the APIs of Kafka 4.3 whose messages are in ``wire.messages``, and their API keys.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file. The arguments
of ``Api``: key, name, lowest and highest version, first flexible version (KIP-482). The broker announces the
APIs that have a handler in ``dispatch.HANDLERS``.
"""

from siltstone.broker.wire.api import Api

'''


def definition(jar: zipfile.ZipFile, name: str) -> dict[str, Any]:
    """Kafka's definition of a message: JSON with comments."""
    text = jar.read(f"common/message/{name}.json").decode()
    message: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return message


def versions(text: str) -> tuple[int, int]:
    """``3+``, ``0-7`` or ``5`` as the first and the last version."""
    first, _, last = text.partition("-")
    if first.endswith("+"):
        return int(first[:-1]), _EVERY_LATER
    return int(first), int(last or first)


def snake(name: str) -> str:
    """``topicId`` as ``topic_id``, ``ISRNodes`` as ``isr_nodes``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def annotation(field: dict[str, Any], valid: tuple[int, int]) -> tuple[str, str]:
    """(the annotation, the default) of a field, as Python."""
    kind, is_array = field["type"], field["type"].startswith("[]")
    kind = kind.removeprefix("[]")
    is_struct = kind[0].isupper()
    first, last = versions(field["versions"])
    arguments = [f'"{"struct" if is_struct else kind}"', str(first)]
    if last < valid[1]:
        arguments.append(f"last={last}")
    nullable = field.get("nullableVersions", "none")
    if nullable != "none":
        arguments.append(f"nullable={versions(nullable)[0]}")
    if is_array:
        arguments.append("is_array=True")
    if "tag" in field:
        arguments.append(f"tag={field['tag']}, tagged={versions(field['taggedVersions'])[0]}")
    python = kind if is_struct else _TYPES.get(kind, "int")
    if is_array:
        python = f"tuple[{python}, ...]"
    default = _default(field, kind, is_array, is_struct)
    if nullable != "none":
        python += " | None"
    return f"Annotated[{python}, Field({', '.join(arguments)})]", default


def _default(field: dict[str, Any], kind: str, is_array: bool, is_struct: bool) -> str:
    default = field.get("default")
    if default == "null":
        return "None"
    if is_array:
        return "()"
    if is_struct:
        return f"field(default_factory={kind})"
    if default is None or default == "":
        return _DEFAULTS.get(kind, "0")
    if kind == "bool":
        return str(str(default).lower() == "true")
    return repr(default) if kind == "string" else str(int(str(default), 0))


def with_distinct_structures(request: dict[str, Any], response: dict[str, Any]) -> list[dict[str, Any]]:
    """Both; where the response has another structure of the same name, its own begins with ``Response``."""
    of_request = dict(structures_of(request["fields"]))
    names = {
        name for name, fields in structures_of(response["fields"]) if of_request.get(name, fields) != fields
    }

    def renamed(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
        renamed_fields = []
        for field in fields:
            array, kind = "[]" * field["type"].startswith("[]"), field["type"].removeprefix("[]")
            inner = {"fields": renamed(field["fields"])} if field.get("fields") else {}
            renamed_fields.append(
                {**field, "type": array + ("Response" if kind in names else "") + kind, **inner}
            )
        return renamed_fields

    return [request, {**response, "fields": renamed(response["fields"])}]


def structures_of(fields: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(name, fields) of the structures in a message's fields, without what is said of them."""
    for field in fields:
        if field.get("fields"):
            inner = [{**inner_field, "about": None} for inner_field in field["fields"]]
            yield field["type"].removeprefix("[]"), inner
            yield from structures_of(field["fields"])


def uses(fields: list[dict[str, Any]], kind: str) -> list[str]:
    """The fields that have this structure, by Kafka's names: a common structure may have several."""
    return [field["name"] for field in fields if field["type"].removeprefix("[]") == kind]


def _listed(names: list[str]) -> str:
    return " and ".join(f"``{name[0].lower() + name[1:]}``" for name in names)


def structures(message: dict[str, Any], written: dict[str, list[str]]) -> Iterator[str]:
    """The classes of a message: those in it first. ``written``: the lines of the module's classes; a request
    and its response may share one."""
    common = {struct["name"]: struct for struct in message.get("commonStructs", ())}
    valid = versions(message["validVersions"])

    def of(name: str, fields: list[dict[str, Any]], about: str, top: int | None = None) -> Iterator[str]:
        lines: list[str] = []
        for field in fields:
            kind = field["type"].removeprefix("[]")
            if kind[0].isupper():
                inner = field.get("fields") or common[kind]["fields"]
                yield from of(kind, inner, f"The type of {_listed(uses(fields, kind))} in {name}.")
            python, default = annotation(field, valid)
            lines.append(f"    {snake(field['name'])}: {python} = {default}\n")
        if written.setdefault(name, lines) is not lines:
            if written[name] != lines:
                sys.exit(f"{message['name']}: there are two structures {name}")
            return
        if top is not None:
            lines.insert(
                0, f"    FIRST_FLEXIBLE: ClassVar[int] = {'NEVER' if top == _EVERY_LATER else top}\n\n"
            )
        yield f'class {name}(Message, frozen=True):\n    """{about}"""\n\n{"".join(lines)}'

    flexible = message["flexibleVersions"]
    first_flexible = _EVERY_LATER if flexible == "none" else versions(flexible)[0]
    about = f"The {message['type']} in {_versions_text(message)}."
    yield from of(message["name"], message["fields"], about, first_flexible)


def _versions_text(message: dict[str, Any]) -> str:
    """``version 0``, or ``versions 0-6, of which 6 is not stable and not announced``."""
    text = message["validVersions"]
    first, last = versions(text)
    if first == last:
        return f"version {text}"
    unstable = message.get("latestVersionUnstable")
    return f"versions {text}" + (f", of which {last} is not stable and not announced" if unstable else "")


def module(name: str, messages: list[dict[str, Any]]) -> str:
    """The module of an API."""
    written: dict[str, list[str]] = {}
    classes = "\n\n".join(structure for message in messages for structure in structures(message, written))
    head = f'''\
"""Requests and responses of {name}.

Generated from Kafka's definitions by ``scripts/wire_messages.py``: change that, not this file.
``wire.fields`` explains ``Field`` and ``FIRST_FLEXIBLE``.
"""

'''
    fields = [word for word in ("NEVER", "ZERO_ID") if re.search(rf"\b{word}\b", classes)]
    imports = ["from typing import Annotated, ClassVar\n"]
    if "field(" in classes:
        imports.append("from msgspec import field\n")
    own = sorted(
        ["Field", "Message", *fields, *(["Records"] if "[Records" in classes else [])],
        key=lambda word: (not word.isupper(), word),
    )
    imports.append(f"from siltstone.broker.wire.fields import {', '.join(own)}\n")
    return head + "\n".join(imports) + "\n\n" + classes


def main(jar_path: str) -> None:
    """Write all modules."""
    rows = []
    with zipfile.ZipFile(jar_path) as jar:
        for name in APIS:
            messages = with_distinct_structures(
                *(definition(jar, name + kind) for kind in ("Request", "Response"))
            )
            (WIRE / f"messages/{snake(name)}.py").write_text(module(name, messages))
            low, high = versions(messages[0]["validVersions"])
            high -= bool(messages[0].get("latestVersionUnstable"))  # Kafka announces it only when asked to
            flexible = messages[0]["flexibleVersions"]
            first = _EVERY_LATER if flexible == "none" else versions(flexible)[0]
            rows.append((messages[0]["apiKey"], name, low, high, first))
    calls = "".join(
        f'        Api({key}, "{name}", {rest[0]}, {rest[1]}, {rest[2]}),\n'
        for key, name, *rest in sorted(rows)
    )
    table = f"APIS: dict[int, Api] = {{\n    api.key: api\n    for api in (\n{calls}    )\n}}\n"
    named = "".join(f"{snake(name).upper()} = {key}\n" for key, name, *_ in sorted(rows))
    (WIRE / "apis.py").write_text(_APIS_HEAD + table + '"""The APIs by their keys."""\n' + named)


if __name__ == "__main__":
    main(sys.argv[1])

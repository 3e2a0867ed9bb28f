"""Whole stopped brokers: their metadata says what their admin API said, and cleaning ends where theirs did.

`whole_43` (4.3.0) and `whole_39` (3.9.1) ran with KRaft: nothing but `--policy-from-metadata` and their
server.properties is needed. `whole_28` (2.8.2) ran with ZooKeeper: topics' settings come from a file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from siltstone.base.config import format_value
from siltstone.base.errors import DirectoryRefusedError
from siltstone.commands import clean as app
from siltstone.commands.directories import BrokerDirectories
from siltstone.commands.groups import OFFSETS_TOPIC, read_groups, with_log_ends
from siltstone.compaction.report import CLEANED, LogResult
from siltstone.log.metadata_log import read_cluster_metadata
from tests.support.cleaning.logs import records_in
from tests.support.golden_sets import unpack_broker, unpack_brokers
from tests.support.operator.staged import in_process, listing, no_engine
from tests.support.records import twin

KRAFT = ("whole_43", "whole_39")
DEFAULTS_BEFORE_4 = {"message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms"}
"""Defaults that Kafka 4 changed; Siltstone has those of 4.3."""


@dataclass(frozen=True, kw_only=True)
class Broker:
    """One stopped broker: its log directories (may be changed), its case.json, what its cleaner left."""

    name: str
    directories: list[Path]
    case: Mapping[str, Any]
    after: Path
    server_properties: Path

    def request(self, **changes: Any) -> app.CleanRequest:
        """Clean it with its own settings, at the time when its own cleaner had done so."""
        now_ms = max(cleaning["now_ms"] for cleaning in self.case["cleaned"].values())
        arguments: dict[str, Any] = {
            "directories": self.directories,
            "in_place": True,
            "policy_from_metadata": True,
            "broker_config": self.server_properties,
            "now_ms": now_ms,
        }
        return app.CleanRequest(**{**arguments, **changes})


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`whole_39` and `whole_28`, unpacked once; read only."""
    return unpack_brokers(tmp_path_factory.mktemp("brokers"))


@pytest.fixture
def broker(request: pytest.FixtureRequest, golden: Path, brokers: Path, tmp_path: Path) -> Broker:
    name: str = request.param
    root = golden if name == "whole_43" else brokers
    if name == "whole_43":
        directories = list(unpack_broker(tmp_path / name))
    else:
        shutil.copytree(root / name / "before", tmp_path / name, copy_function=shutil.copy2)
        directories = [tmp_path / name / "data"]
    case = json.loads((root / name / "case.json").read_text(encoding="utf-8"))
    static = {**case["broker_static"], "ssl.keystore.password": "secret", "a.plugins.own": "${file:/x:y}"}
    properties = tmp_path / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in static.items()), encoding="utf-8")
    return Broker(
        name=name,
        directories=directories,
        case=case,
        after=root / name / "after",
        server_properties=properties,
    )


def kafkas_settings(broker: Broker, topic: str) -> dict[str, tuple[str, str]]:
    """A topic's settings with their sources as the admin API gave them."""
    configs = broker.case["state_before"]["topics"][topic]["configs"]
    settings = {key: (entry["value"], entry["source"]) for key, entry in configs.items()}
    small = settings.pop("internal.segment.bytes", None)
    if small is not None and small[1] != "DEFAULT_CONFIG":
        settings["segment.bytes"] = small  # it wins, and both are one setting here
    return settings


def dry_run(broker: Broker, **changes: Any) -> app.CleanOutcome:
    request = broker.request(in_place=False, dry_run=True, **changes)
    return app.clean(request, engine=in_process)


@pytest.mark.parametrize("broker", KRAFT, indirect=True)
def test_topics_and_their_ids_are_those_that_the_broker_knew(broker: Broker) -> None:
    image = read_cluster_metadata(broker.directories[0] / "__cluster_metadata-0")
    known = broker.case["state_before"]["topics"]
    assert dict(image.topics) == {name: topic["topic_id"] for name, topic in known.items()}


@pytest.mark.parametrize("broker", KRAFT, indirect=True)
def test_settings_and_their_sources_are_those_that_the_broker_reported(broker: Broker) -> None:
    before = [listing(directory) for directory in broker.directories]
    report = dry_run(broker)
    assert [listing(directory) for directory in broker.directories] == before
    topics = {result.topic for result in report.results if result.settings}
    assert topics == set(broker.case["state_before"]["topics"])
    compared = 0
    for result in report.results:
        for name, (value, source) in kafkas_settings(broker, result.topic).items() if result.settings else ():
            setting = result.settings.get(name)
            if setting is None or (name in DEFAULTS_BEFORE_4 and broker.name != "whole_43"):
                continue
            assert (format_value(setting.value), setting.source) == (value, source), (
                result.topic_partition,
                name,
            )
            compared += 1
    assert compared > 20 * len(topics)


@pytest.mark.parametrize("broker", ["whole_43"], indirect=True)
def test_without_server_properties_its_settings_are_kafkas_defaults_and_that_is_said(broker: Broker) -> None:
    report = dry_run(broker, broker_config=None)
    assert any("--broker-config" in note for note in report.notes)
    (ledger, _) = [result for result in report.results if result.topic == "ledger"]
    index, horizon = (ledger.settings[name] for name in ("segment.index.bytes", "delete.retention.ms"))
    assert (index.value, index.source) == (10 << 20, "DEFAULT_CONFIG")
    assert (horizon.value, horizon.source) == (43_200_000, "DYNAMIC_DEFAULT_BROKER_CONFIG")


def log_records(partition: Path) -> list[twin.Record]:
    """All records of a log, without their encoded sizes: 2.8 had no delete horizons, so deltas differ."""
    records = [record for path in sorted(partition.glob("*.log")) for record in records_in(path.read_bytes())]
    return [replace(record, size=0) for record in records]


def assert_ends_as_kafka_did(broker: Broker, results: list[LogResult]) -> None:
    """Each partition that Kafka cleaned has the records that Kafka left, and no other partition was touched.

    Kafka's retention ran as well, so what lies below its log's new start is not compared.
    """
    cleaned = {str(result.topic_partition): result for result in results if result.status == CLEANED}
    assert set(cleaned) == set(broker.case["cleaned"])
    for name, result in cleaned.items():
        our_records = log_records(Path(result.directory))
        (kafkas_partition,) = broker.after.glob(f"*/{name}")
        start = min(int(path.stem) for path in kafkas_partition.glob("*.log"))
        assert [record for record in our_records if record.offset >= start] == log_records(
            kafkas_partition
        ), name
        assert result.cleaned_end_offset == broker.case["cleaned"][name]["dirty_section"][-1][1], name


@pytest.mark.parametrize("broker", KRAFT, indirect=True)
def test_every_partition_that_kafka_cleaned_ends_with_the_same_records(broker: Broker) -> None:
    report = app.clean(broker.request(), engine=in_process)
    assert_ends_as_kafka_did(broker, report.results)
    assert {Path(passed.path).name.rpartition("-")[2] for passed in report.passed_over} == {"delete"}


@pytest.mark.parametrize("broker", ["whole_28"], indirect=True)
def test_a_zookeeper_brokers_directory_wants_a_file_of_settings(broker: Broker) -> None:
    before = listing(broker.directories[0])
    with pytest.raises(DirectoryRefusedError, match=r"ZooKeeper.*--config-file"):
        app.clean(broker.request(), engine=no_engine)
    assert listing(broker.directories[0]) == before


def by_file(broker: Broker, tmp_path: Path) -> dict[str, Any]:
    """The flags for a broker without metadata: topics' settings in a file, dynamic ones in the broker's."""
    own = "DYNAMIC_TOPIC_CONFIG"
    lines = [
        f"{topic}:{name}={value}"
        for topic in broker.case["state_before"]["topics"]
        for name, (value, source) in kafkas_settings(broker, topic).items()
        if source == own
    ]
    topics = tmp_path / "topics.config"
    topics.write_text("\n".join(lines), encoding="utf-8")
    dynamic = broker.case["broker_dynamic"]
    with broker.server_properties.open("a", encoding="utf-8") as file:
        for name, value in {**dynamic["brokers/default"], **dynamic["brokers/1"]}.items():
            file.write(f"{name}={value}\n")
    return {"policy_from_metadata": False, "config_file": topics, "drop_keyless": True}


@pytest.mark.parametrize("broker", ["whole_28"], indirect=True)
def test_settings_by_file_and_server_properties_are_those_that_were_in_force(
    broker: Broker, tmp_path: Path
) -> None:
    report = dry_run(broker, **by_file(broker, tmp_path))
    for result in report.results:
        for name, (value, source) in kafkas_settings(broker, result.topic).items() if result.settings else ():
            setting = result.settings.get(name)
            if setting is not None and name not in DEFAULTS_BEFORE_4:
                assert format_value(setting.value) == value, (result.topic_partition, name, source)
    ledger = next(result for result in report.results if result.topic == "ledger")
    assert ledger.settings["segment.index.bytes"].source.startswith(f"{broker.server_properties}:")


@pytest.mark.parametrize("broker", ["whole_28"], indirect=True)
def test_a_zookeeper_brokers_logs_end_as_kafka_left_them(broker: Broker, tmp_path: Path) -> None:
    report = app.clean(broker.request(**by_file(broker, tmp_path)), engine=in_process)
    assert_ends_as_kafka_did(broker, report.results)


def assert_groups_as_kafka_listed_them(broker: Broker) -> None:
    """What kafka-consumer-groups showed before the broker was stopped."""
    snapshot = BrokerDirectories(paths=tuple(broker.directories)).snapshot()
    groups, failures = with_log_ends(snapshot, read_groups(snapshot)[0])
    our_offsets = {
        (group.name, offset.topic_partition.topic, offset.topic_partition.partition): (
            offset.current_offset,
            offset.log_end_offset,
            offset.lag,
            offset.member_id,
        )
        for group in groups
        for offset in group.offsets
    }
    names = ("current_offset", "log_end_offset", "lag")
    kafkas_offsets = {
        (row["group"], row["topic"], row["partition"]): (*(int(row[name]) for name in names), None)
        for row in broker.case["state_before"]["consumer_groups"]
        if row["consumer_id"] == "-"
    }
    assert len(kafkas_offsets) == len(broker.case["state_before"]["consumer_groups"]) > 20
    assert (our_offsets, failures) == (kafkas_offsets, [])
    assert {(group.type, group.state) for group in groups} == {("Classic", "Empty")}


@pytest.mark.parametrize("broker", [*KRAFT, "whole_28"], indirect=True)
def test_consumer_groups_are_those_that_kafka_listed_before_and_after_cleaning(
    broker: Broker, tmp_path: Path
) -> None:
    assert_groups_as_kafka_listed_them(broker)
    settings = by_file(broker, tmp_path) if broker.name == "whole_28" else {}
    report = app.clean(broker.request(**settings, topics=[OFFSETS_TOPIC]), engine=in_process)
    assert any(result.topic == OFFSETS_TOPIC and result.status == CLEANED for result in report.results)
    assert_groups_as_kafka_listed_them(broker)

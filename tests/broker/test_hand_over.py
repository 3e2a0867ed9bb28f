"""What ``siltstone hand-over`` writes, and what it refuses. ``tests/kafka`` starts a Kafka on it."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_fields

from siltstone.base import files
from siltstone.base.config import ConfigSource, LogConfig
from siltstone.base.errors import (
    CorruptFileError,
    DirectoryLockedError,
    DirectoryRefusedError,
    UsageError,
)
from siltstone.broker.hand_over import HandOver, HandOverRequest, hand_over
from siltstone.broker.producer_ids import BROKER_FILE, PRODUCER_ID_END, read_next_producer_id
from siltstone.commands.directories import BrokerDirectories, Snapshot
from siltstone.commands.policies import LogOptions, gather_policies
from siltstone.log.bootstrap import BOOTSTRAP_CHECKPOINT, RECORDS_PER_BATCH
from siltstone.log.directory import open_directories
from siltstone.log.metadata_log import TOPIC_RESOURCE, MetadataImage, _apply_snapshot
from siltstone.log.names import CLEAN_SHUTDOWN, META_PROPERTIES, PARTITION_METADATA
from siltstone.runtime.manager import LogManager
from siltstone.runtime.topics import TOPICS_FILE, load_registry, read_broker_settings
from tests.support.errors import raises_error
from tests.support.golden_sets import unpack_broker
from tests.support.log.batches import sent
from tests.support.thoroughness import THOROUGH

SETTINGS = {"cleanup.policy": "compact", "siltstone.compaction.order": "time"}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory with two topics, stopped cleanly."""
    directory = tmp_path / "logs"
    with BrokerDirectories(paths=(directory,)).open() as manager:
        manager.topics.create("users", 3, SETTINGS)
        manager.topics.create("events", 1, {})
    return directory


def handed(directory: Path, **options: object) -> HandOver:
    paths = BrokerDirectories(paths=(directory,))
    return hand_over(HandOverRequest(directories=paths, **options))  # type: ignore[arg-type]


def image_of(directory: Path) -> MetadataImage:
    image = MetadataImage()
    _apply_snapshot(image, str(directory / BOOTSTRAP_CHECKPOINT))
    return image


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_the_checkpoint_has_topics_partitions_settings_and_producer_ids(logs: Path) -> None:
    (logs / BROKER_FILE).write_text('{"version": 1, "next_producer_id": 4001}')
    before = Snapshot([logs], BrokerDirectories(paths=(logs,)).broker_config())
    result = handed(logs)
    image = image_of(logs)
    assert image.topics == {name: before.topic(name).topic_id for name in ("events", "users")}
    assert image.partition_counts == {image.topics["users"]: 3, image.topics["events"]: 1}
    assert image.settings_of(TOPIC_RESOURCE, "users") == {"cleanup.policy": "compact"}
    assert image.next_producer_id == result.next_producer_id == 5000
    assert [replicas.leader for replicas in image.replicas[image.topics["users"]].values()] == [0, 0, 0]
    assert (result.topics, result.partitions, result.settings) == (2, 4, 1)
    assert result.left_out == ["users: siltstone.compaction.order=time"]
    assert load_registry([logs])[0].handed_over == set(image.topics.values())


def test_the_checkpoint_has_the_quotas(logs: Path, tmp_path: Path) -> None:
    quotas = {
        (("client-id", None), ("user", "ada")): {"producer_byte_rate": 1000.0, "request_percentage": 12.5},
        (("ip", "192.0.2.1"),): {"connection_creation_rate": 3.0},
    }
    with BrokerDirectories(paths=(logs,)).open() as manager:
        manager.topics.replace_quotas(quotas)
    assert handed(logs).quotas == 3
    assert image_of(logs).quotas == quotas
    with BrokerDirectories(paths=(logs,)).open() as manager:  # no Kafka has started
        assert manager.topics.quotas == quotas


def test_siltstone_continues_with_its_settings_until_there_is_a_metadata_log(logs: Path) -> None:
    handed(logs)
    with BrokerDirectories(paths=(logs,)).open() as manager:
        assert manager.topics.describe("users").config == SETTINGS
        manager.topics.alter("users", {"retention.ms": "5"})
    registry = load_registry([logs])[0]
    assert registry.handed_over == {registry.topics["events"].topic_id}


def test_a_dry_run_changes_nothing(logs: Path) -> None:
    before = contents(logs)
    result = handed(logs, dry_run=True)
    assert result.partitions == 4
    assert contents(logs) == before


def test_a_checkpoint_may_have_more_records_than_a_batch(logs: Path) -> None:
    with BrokerDirectories(paths=(logs,)).open() as manager:
        manager.topics.create("many", 30, {})
        for number in range(40):
            manager.topics.create(f"topic{number}", 1, {"retention.ms": "1"} if number % 2 else {})
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched:
        patched.setattr("siltstone.log.bootstrap.RECORDS_PER_BATCH", 7)
        handed(logs)
    assert RECORDS_PER_BATCH > 7
    assert len(image_of(logs).topics) == 43


def test_a_topic_without_an_id_gets_one(logs: Path) -> None:
    for number in range(3):
        (logs / f"users-{number}" / PARTITION_METADATA).unlink()
    (logs / TOPICS_FILE).unlink()
    result = handed(logs)
    assert result.new_ids == ["users"]
    ids = {(logs / f"users-{number}" / PARTITION_METADATA).read_text() for number in range(3)}
    assert ids == {f"version: 0\ntopic_id: {image_of(logs).topics['users']}"}
    assert handed(logs).new_ids == []


@pytest.mark.parametrize("broken_at", range(3))
def test_an_interrupted_run_leaves_directories_that_open_and_is_repeated(
    logs: Path, broken_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (logs / "events-0" / PARTITION_METADATA).unlink()
    registry = load_registry([logs])[0]
    entry = registry.topics["events"]
    with_lost_id = registry.with_topic("events", replace_fields(entry, topic_id=""))
    (logs / TOPICS_FILE).write_bytes(with_lost_id.encode())
    calls, replace = 0, files.replace

    def failing(path: Path, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == broken_at + 1:
            raise OSError(28, "no space is left")
        replace(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(files, "replace", failing)
        with pytest.raises(OSError, match="no space"):
            handed(logs)
    snapshot = Snapshot([logs], BrokerDirectories(paths=(logs,)).broker_config())
    assert snapshot.topic("users").config == SETTINGS
    assert handed(logs).topics == 2
    assert set(image_of(logs).topics) == {"users", "events"}


def test_what_kafka_would_not_find_is_refused(logs: Path) -> None:
    (logs / "users-1").rename(logs.parent / "elsewhere")
    with pytest.raises(DirectoryRefusedError, match="partition 1 of 3"):
        handed(logs)
    assert not (logs / BOOTSTRAP_CHECKPOINT).exists()


def test_directories_of_two_brokers_and_a_partition_that_is_there_twice_are_refused(
    logs: Path, tmp_path: Path
) -> None:
    """Kafka would start on one of the two copies, and rename the other."""
    other = tmp_path / "other"
    with BrokerDirectories(paths=(other,)).open() as manager:
        manager.topics.create("elsewhere", 1)
    request = HandOverRequest(directories=BrokerDirectories(paths=(logs, other)))
    with raises_error(DirectoryRefusedError, about="cluster.id"):
        hand_over(request)
    shutil.rmtree(other)
    with BrokerDirectories(paths=(logs, other)).open() as manager:
        assert len(manager.serving()) == 2
    shutil.copytree(logs / "users-0", other / "users-0")
    with raises_error(DirectoryRefusedError, path=other / "users-0", about="also in"):
        hand_over(request)
    assert not (logs / BOOTSTRAP_CHECKPOINT).exists() and not (other / BOOTSTRAP_CHECKPOINT).exists()
    shutil.rmtree(other / "users-0")
    assert hand_over(request).partitions == 4


def test_directories_that_are_open_or_were_not_stopped_are_refused(logs: Path) -> None:
    with BrokerDirectories(paths=(logs,)).open(), pytest.raises(DirectoryLockedError):
        handed(logs)
    (logs / CLEAN_SHUTDOWN).unlink()
    with pytest.raises(DirectoryRefusedError, match="not stopped cleanly"):
        handed(logs)


@pytest.mark.parametrize("content", ['{"version": 1, "next_producer_id": -1}', "garbage", ""])
def test_a_damaged_file_of_producer_ids_skips_ids_as_its_advice_says(logs: Path, content: str) -> None:
    (logs / BROKER_FILE).write_text(content)
    with raises_error(CorruptFileError, path=logs / BROKER_FILE, advice="skipped"):
        read_next_producer_id(logs)
    for is_dry in (True, False):
        assert handed(logs, dry_run=is_dry).next_producer_id == -(-(1 << 40) // 1000) * 1000


@pytest.mark.parametrize("next_producer_id", [0, 7000])
def test_a_producer_id_that_a_client_made_up_is_not_passed_on(logs: Path, next_producer_id: int) -> None:
    with BrokerDirectories(paths=(logs,)).open() as manager:
        for producer_id in (8500, PRODUCER_ID_END - 1500):
            now = manager.clock.now_ms()
            batch = sent(producer_id=producer_id, producer_epoch=0, base_sequence=0, first_time=now)
            manager["events", 0].append(batch)
    if next_producer_id:
        (logs / BROKER_FILE).write_text(f'{{"version": 1, "next_producer_id": {next_producer_id}}}')
    assert handed(logs, dry_run=True).next_producer_id == 9000


def test_directories_without_an_identity_are_refused(logs: Path) -> None:
    (logs / META_PROPERTIES).unlink()
    with pytest.raises(DirectoryRefusedError, match=r"meta\.properties"):
        handed(logs)


@pytest.mark.parametrize("text", ["abc", "²", "99999999999", "-1"])
def test_a_node_id_that_is_no_number_is_refused(logs: Path, text: str) -> None:
    properties = logs / META_PROPERTIES
    properties.write_text(properties.read_text().replace("node.id=0", f"node.id={text}"))
    before = contents(logs)
    for is_dry in (True, False):
        with raises_error(DirectoryRefusedError, path=properties, advice="node.id"):
            handed(logs, dry_run=is_dry)
    with raises_error(DirectoryRefusedError, path=properties, advice="node.id"):
        LogManager.open([logs])
    assert contents(logs) == before
    directories = BrokerDirectories(paths=(logs,))
    assert Snapshot(directories.paths, directories.broker_config()).broker_id == 0


def test_a_link_in_the_place_of_the_checkpoint_is_replaced(logs: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    (logs / BOOTSTRAP_CHECKPOINT).symlink_to(target)
    handed(logs)
    assert target.read_text() == "precious"
    assert not (logs / BOOTSTRAP_CHECKPOINT).is_symlink()


def test_a_wrong_release_or_target_is_refused(logs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"3\.9"):
        handed(logs, release="3.9")
    (logs / "__cluster_metadata-0").mkdir()
    with pytest.raises(DirectoryRefusedError, match="--move-metadata-to"):
        handed(logs)
    for target in (logs / "inside", logs / "users-0" / "inside", tmp_path, tmp_path / "missing" / "folder"):
        with pytest.raises(UsageError, match="--move-metadata-to"):
            handed(logs, move_metadata_to=target)


# A Kafka's own directories: the golden broker, with what Siltstone has changed beside its metadata log.

METADATA_LOG = "__cluster_metadata-0"
OF_BROKER = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


class KafkasOwn:
    """A stopped Kafka's two directories below ``root``, the first with its metadata log."""

    def __init__(self, root: Path) -> None:
        self.paths = root / "data0", root / "data1"
        self.directories = BrokerDirectories(paths=self.paths)
        self.old_log = root / "old-metadata"

    def hand_over(self) -> HandOver:
        has_log = (self.paths[0] / METADATA_LOG).is_dir()
        target = self.old_log if has_log else None
        return hand_over(HandOverRequest(directories=self.directories, move_metadata_to=target))

    def snapshot(self) -> Snapshot:
        return Snapshot(self.paths, self.directories.broker_config())

    def state(self) -> dict[str, object]:
        """What Siltstone works with: ids, partitions and settings of topics, and the settings of brokers."""
        snapshot = self.snapshot()
        state: dict[str, object] = {}
        for topic in map(snapshot.topic, snapshot.names()):
            settings = dict(snapshot.settings_of(topic).overrides(topic.name))
            state[topic.name] = topic.topic_id, topic.partitions, settings
        for source in OF_BROKER:
            layer = snapshot.settings.broker.layer(source)
            state[source.value] = {name: setting.value for name, setting in layer.items()}
        return state

    def opened_state(self) -> dict[str, object]:
        """The same of open directories, and which partitions are not served."""
        with self.directories.open() as manager:
            topics, state = manager.topics, dict[str, object]()
            for name in topics.names():
                layer = topics.settings(name).layer(ConfigSource.DYNAMIC_TOPIC_CONFIG)
                values = {key: setting.value for key, setting in layer.items()}
                state[name] = topics.describe(name).offline, values, topics.log_config(name)
            return state

    def handed_over(self) -> tuple[object, ...]:
        """What Kafka gets."""
        image = image_of(self.paths[0])
        return image.settings, image.topics, image.partition_counts, image.next_producer_id


@pytest.fixture(scope="module")
def kafkas_own(tmp_path_factory: pytest.TempPathFactory) -> KafkasOwn:
    """Directories in which Siltstone has created a topic and altered another; copy them."""
    root = tmp_path_factory.mktemp("kafka")
    unpack_broker(root)
    own = KafkasOwn(root)
    with own.directories.open() as manager:
        manager.topics.create("ours", 2, {"retention.ms": "77", "cleanup.policy": "compact"})
        manager.topics.alter("ledger", {"flush.ms": "5"})
    return own


@pytest.fixture
def own(kafkas_own: KafkasOwn, tmp_path: Path) -> KafkasOwn:
    shutil.copytree(kafkas_own.paths[0].parent, tmp_path / "own")
    return KafkasOwn(tmp_path / "own")


def test_what_kafka_has_set_stays_when_its_metadata_log_is_moved(own: KafkasOwn) -> None:
    before, snapshot = own.state(), own.snapshot()
    kafkas = {topic: dict(snapshot.overrides(snapshot.topic(topic))) for topic in snapshot.names()}
    assert kafkas["users"]["delete.retention.ms"] == "1000"
    assert kafkas["ledger"]["flush.ms"] == "5"
    assert before[OF_BROKER[0].value] and before[OF_BROKER[1].value]
    assert own.hand_over().moved == own.old_log
    assert own.state() == before
    settings, topics, counts, next_producer_id = own.handed_over()
    assert {name: settings.get((TOPIC_RESOURCE, name), {}) for name in kafkas} == kafkas  # type: ignore[attr-defined]
    assert set(topics) == set(kafkas)  # type: ignore[call-overload]
    assert sorted(counts.values()) == sorted(len(before[name][1]) for name in kafkas)  # type: ignore[attr-defined,index]
    assert next_producer_id == 1000


def test_open_directories_go_on_with_the_same_settings(own: KafkasOwn) -> None:
    before = own.opened_state()
    own.hand_over()
    assert own.opened_state() == before
    assert own.opened_state() == before  # with the registry as it was written


def test_a_cleaning_has_the_same_settings(own: KafkasOwn) -> None:
    """Also those of brokers, which were not used before, once the metadata log was away."""

    def cleaner_configs() -> dict[str, object]:
        policies = gather_policies(open_directories(own.paths, lock=False), LogOptions())
        topics = own.snapshot().names()
        return {name: LogConfig.of(policies.settings.config_of(name)) for name in topics}

    before = cleaner_configs()
    assert before["orders"].delete_retention_ms == 43_200_000  # type: ignore[attr-defined]
    own.hand_over()
    assert cleaner_configs() == before


def test_directories_may_be_handed_over_again_after_a_change(own: KafkasOwn) -> None:
    own.hand_over()
    settings, topics, _, next_producer_id = own.handed_over()
    with own.directories.open() as manager:
        manager.topics.alter("users", {"delete.retention.ms": "2000"})
        manager.topics.create("later", 1, {})
        manager.topics.alter_brokers({"log.retention.ms": "7"}, of_all=False)
    assert own.hand_over().moved is None
    again, more, _, still = own.handed_over()
    expected = {
        **settings,
        (TOPIC_RESOURCE, "users"): {**settings[TOPIC_RESOURCE, "users"], "delete.retention.ms": "2000"},
    }  # type: ignore[dict-item,index]
    assert again[4, "1"]["log.retention.ms"] == "7"  # type: ignore[index]
    assert {key: again[key] for key in expected if key != (4, "1")} == {
        key: value for key, value in expected.items() if key != (4, "1")
    }  # type: ignore[index]
    assert set(more) == {*topics, "later"}  # type: ignore[call-overload,misc]
    assert still == next_producer_id


class Killed(BaseException):
    """The process ends here."""


def changes_of(own: KafkasOwn, number: int = 1 << 30) -> list[str]:
    """Hand over, but end before the change of a file with this number: the kinds of changes."""
    kinds = list[str]()

    def count(kind: str, *paths: object) -> None:
        if len(kinds) == number:
            raise Killed
        kinds.append(kind)

    with pytest.MonkeyPatch.context() as patched, contextlib.suppress(Killed):
        patched.setattr(files, "before_change", count)
        own.hand_over()
    return kinds


def test_a_crash_before_any_change_of_a_file_loses_no_setting(kafkas_own: KafkasOwn, tmp_path: Path) -> None:
    """A thorough run tries all changes, any other those that make something visible."""

    def copy_of(source: KafkasOwn, name: str) -> KafkasOwn:
        shutil.copytree(source.paths[0].parent, tmp_path / name)
        return KafkasOwn(tmp_path / name)

    before, whole = kafkas_own.state(), copy_of(kafkas_own, "whole")
    kinds = changes_of(whole)
    assert kinds.count("rename") == 4  # the checkpoint, two registries, the metadata log
    for number, kind in enumerate(kinds):
        if kind != "rename" and not THOROUGH:
            continue
        own = copy_of(kafkas_own, str(number))
        assert changes_of(own, number) == kinds[:number]
        assert own.state() == before, number
        if kinds[number:].count("rename") == 1:  # both registries are there
            opened = copy_of(own, f"{number}-opened")
            served = opened.opened_state()
            assert [facts for facts in served.values() if facts[0]] == []  # type: ignore[index]
            assert opened.state() == before
            opened.hand_over()
            assert opened.handed_over() == whole.handed_over()
        own.hand_over()
        assert own.state() == before, number
        assert not (own.paths[0] / METADATA_LOG).exists()
        assert own.handed_over() == whole.handed_over(), number


def test_a_kafka_that_continues_with_the_old_metadata_log_after_a_crash_counts(own: KafkasOwn) -> None:
    number = 0
    while not load_registry(own.paths)[0].replaced_log:
        changes_of(own, number)
        number += 1
    registry = load_registry(own.paths)[0]
    cluster = read_broker_settings(open_directories(own.paths, lock=False))
    assert cluster is not None and registry.without_handed_over(cluster) is registry
    later = dataclasses.replace(cluster, image=dataclasses.replace(cluster.image, end_offset=178))
    assert registry.without_handed_over(later).topics == {} == registry.without_handed_over(later).brokers
    changed = registry.with_broker("1", {"log.retention.ms": "9"})
    assert changed.without_handed_over(later).brokers == {"1": {"log.retention.ms": "9"}}

"""The sources of a cleaning's settings: metadata, files, the command line; directories of deleted topics."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import siltstone as st
from siltstone.base.clock import ManualClock
from siltstone.base.config import Config
from siltstone.base.errors import CorruptRecordError, DirectoryRefusedError, SiltstoneError, UsageError
from siltstone.cli.main import run
from siltstone.commands import clean as app
from siltstone.commands.directories import Snapshot
from siltstone.commands.policies import LogOptions
from siltstone.commands.watch import METADATA_MS, Watch
from siltstone.compaction.inplace.planning import POLICY_UNKNOWN
from siltstone.compaction.report import LogResult
from siltstone.runtime.topics import NO_TOPICS, TopicEntry, write_registry
from tests.support.errors import raises_error
from tests.support.log.metadata_logs import write_cluster_metadata, write_metadata_log
from tests.support.operator.staged import in_process, listing, no_engine, stage
from tests.support.records.frames import config, remove_topic, topic, topic_config, topic_id

BASIC, KEYLESS = 7, 8
COMPACT = topic_config("basic", "cleanup.policy", "compact")
EAGER = topic_config("basic", "min.cleanable.dirty.ratio", "0")


@pytest.fixture
def directory(golden: Path, tmp_path: Path) -> Path:
    """A KRaft broker's log directory with one partition, basic-0; its metadata is still to be written."""
    staged = stage(golden, "basic", tmp_path / "data")
    set_id(staged.directory / "basic-0", BASIC)
    return staged.directory


def set_id(partition: Path, number: int) -> None:
    (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id(number)}\n")


def request(*directories: Path, **changes: Any) -> app.CleanRequest:
    defaults: dict[str, Any] = {"dry_run": True, "policy_from_metadata": True, "now_ms": 1_795_230_724_700}
    return app.CleanRequest(directories=directories, **{**defaults, **changes})


def clean(*directories: Path, **changes: Any) -> dict[str, LogResult]:
    report = app.clean(request(*directories, **changes), engine=in_process)
    return {str(result.topic_partition): result for result in report.results}


def refused(
    kind: type[SiltstoneError],
    *directories: Path,
    path: Path | None = None,
    about: str | None = None,
    advice: str | None = None,
    **changes: Any,
) -> SiltstoneError:
    """The error of a cleaning that is refused before an engine is started."""
    with raises_error(kind, path=path, about=about, advice=advice) as raised:
        app.clean(request(*directories, **changes), engine=no_engine)
    return raised.value


def shown(result: LogResult, name: str) -> tuple[object, str]:
    return result.settings[name].value, result.settings[name].source


def test_the_metadata_has_all_settings_of_a_cleaning(directory: Path) -> None:
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT, EAGER])
    result = clean(directory, dry_run=False, in_place=True)["basic-0"]
    assert (result.status, result.discarded.superseded > 0) == ("cleaned", True)
    assert shown(result, "cleanup.policy") == (("compact",), "DYNAMIC_TOPIC_CONFIG")
    assert shown(result, "segment.bytes") == (1 << 30, "DEFAULT_CONFIG")


def test_the_order_of_precedence_is_kafkas(directory: Path, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    lines = ["log.retention.hours=1", "log.cleaner.delete.retention.ms=1", "log.segment.bytes=2000000"]
    lines += ["log.cleaner.min.compaction.lag.ms=1", "log.roll.hours=2", "log.retention.bytes=77"]
    properties.write_text("\n".join(lines))
    write_cluster_metadata(
        directory,
        [
            topic("basic", BASIC),
            COMPACT,
            topic_config("basic", "delete.retention.ms", "4"),
            config(4, "", "log.cleaner.delete.retention.ms", "2"),
            config(4, "0", "log.cleaner.delete.retention.ms", "3"),
            config(4, "", "log.retention.ms", "20"),
            config(4, "0", "log.retention.ms", "30"),
            config(4, "5", "log.retention.ms", "50"),
            config(4, "", "log.cleaner.min.compaction.lag.ms", "2"),
            config(4, "", "log.retention.bytes", "5"),
            config(4, "", "log.retention.bytes", None),
        ],
    )
    result = clean(directory, broker_config=properties)["basic-0"]
    assert shown(result, "delete.retention.ms") == (4, "DYNAMIC_TOPIC_CONFIG")
    assert shown(result, "retention.ms") == (30, "DYNAMIC_BROKER_CONFIG")
    assert shown(result, "min.compaction.lag.ms") == (2, "DYNAMIC_DEFAULT_BROKER_CONFIG")
    assert shown(result, "segment.ms") == (7_200_000, "STATIC_BROKER_CONFIG")
    assert shown(result, "retention.bytes") == (77, "STATIC_BROKER_CONFIG")
    assert shown(result, "index.interval.bytes") == (4096, "DEFAULT_CONFIG")


@pytest.mark.parametrize(("later_ms", "ratio"), [(0, 0.0), (-60_000, 0.0), (1, 0.5), (METADATA_MS, 0.0)])
def test_a_watch_reads_the_metadata_again_in_time_whatever_the_clock_does(
    directory: Path, later_ms: int, ratio: float
) -> None:
    """The clock of --now-ms stands, and one that is set back would keep the first settings for long."""
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT])
    clock = ManualClock(1_795_230_724_700)
    watch = Watch([directory], LogOptions(), clock)
    (log,) = watch.snapshot().logs
    assert log.min_ratio is not None and log.min_ratio.value == 0.5
    shutil.rmtree(directory / "__cluster_metadata-0")
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT, EAGER])
    clock.time_ms += later_ms
    (log,) = watch.snapshot().logs
    assert log.min_ratio is not None and log.min_ratio.value == ratio


def test_settings_of_the_command_line_override_all_others_and_are_shown_as_such(
    directory: Path, tmp_path: Path
) -> None:
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT, EAGER])
    lines = tmp_path / "topics.config"
    lines.write_text("basic:delete.retention.ms=5\nbasic:index.interval.bytes=99\n")
    result = clean(directory, topics=["basic"], config=["delete.retention.ms=6"], config_file=lines)[
        "basic-0"
    ]
    assert result.status == "cleaned"
    assert shown(result, "delete.retention.ms") == (6, "--config")
    assert shown(result, "index.interval.bytes") == (99, f"{lines}:2")
    assert shown(result, "cleanup.policy") == (("compact",), "DYNAMIC_TOPIC_CONFIG")


def test_config_still_needs_a_topic(directory: Path) -> None:
    write_cluster_metadata(directory, [topic("basic", BASIC)])
    refused(UsageError, directory, config=["cleanup.policy=compact"], about="--config", advice="--topic")


def test_a_topic_without_the_policy_compact_is_skipped(directory: Path) -> None:
    write_cluster_metadata(directory, [topic("basic", BASIC), EAGER])
    result = clean(directory, force=True)["basic-0"]
    assert (result.status, result.reason) == ("skipped", "cleanup.policy=delete")


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([topic("other", BASIC), COMPACT], "no topic of this name"),
        ([topic("basic", BASIC), COMPACT, remove_topic(BASIC)], "no topic of this name"),
        ([topic("basic", BASIC), remove_topic(BASIC), topic("basic", 9), COMPACT], topic_id(9)),
    ],
)
@pytest.mark.parametrize("by_hand", [(), ("cleanup.policy=compact",)])
def test_directories_of_deleted_topics_are_skipped(
    directory: Path, values: list[bytes], word: str, by_hand: tuple[str, ...]
) -> None:
    write_cluster_metadata(directory, [*values, EAGER])
    before = listing(directory)
    result = clean(directory, force=True, dry_run=False, in_place=True, topics=["basic"], config=by_hand)[
        "basic-0"
    ]
    assert result.status == "skipped" and word in result.reason
    assert listing(directory) == before


def test_of_two_directories_with_a_topics_name_only_that_with_another_id_is_skipped(directory: Path) -> None:
    shutil.copytree(directory / "basic-0", directory / "basic-1")
    set_id(directory / "basic-1", 9)
    high = directory / "replication-offset-checkpoint"
    high.write_text("0\n2\nbasic 0 532\nbasic 1 532\n")
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT, EAGER])
    results = clean(directory)
    assert {name: result.status for name, result in results.items() if "basic" in name} == {
        "basic-0": "cleaned",
        "basic-1": "skipped",
    }
    assert topic_id(9) in results["basic-1"].reason


def test_a_partition_without_a_topic_id_is_skipped(directory: Path) -> None:
    (directory / "basic-0" / "partition.metadata").unlink()
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT, EAGER])
    result = clean(directory)["basic-0"]
    assert result.status == "skipped" and "partition.metadata" in result.reason


def test_a_partition_whose_topic_id_cannot_be_read_keeps_no_other_from_being_cleaned(directory: Path) -> None:
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT, EAGER])
    shutil.copytree(directory / "basic-0", directory / "basic-1")
    (directory / "replication-offset-checkpoint").write_text("0\n1\nbasic 1 532\n")
    path = directory / "basic-0" / "partition.metadata"
    path.unlink()
    path.symlink_to(path)  # as EIO, or as a file of another user
    results = clean(directory)
    assert results["basic-1"].status == "cleaned"
    assert (results["basic-0"].status, results["basic-0"].reason) == (
        "skipped",
        f"{path}: Too many levels of symbolic links",
    )
    assert Snapshot([directory], Config()).topic("basic").partitions == (0, 1)


def test_records_without_a_key_are_discarded_as_by_the_broker(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "keyless", tmp_path / "data")
    set_id(staged.partition, KEYLESS)
    own = [topic("keyless", KEYLESS), topic_config("keyless", "min.cleanable.dirty.ratio", "0")]
    compact = topic_config("keyless", "cleanup.policy", "compact")
    write_cluster_metadata(staged.directory, [*own, compact])
    result = clean(staged.directory)["keyless-0"]
    assert (result.status, result.discarded.keyless) == ("cleaned", 202)
    shutil.rmtree(staged.directory / "__cluster_metadata-0")
    write_cluster_metadata(staged.directory, own)
    by_hand = clean(staged.directory, topics=["keyless"], config=["cleanup.policy=compact"])["keyless-0"]
    assert by_hand.status == "skipped" and "--drop-keyless" in by_hand.reason


def test_unknown_settings_are_ignored(directory: Path, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(
        "ssl.key.password=secret\nauthorizer.class.name=x\nnum.io.threads=none\nretention.ms=1\n"
    )
    values = [
        topic("basic", BASIC),
        COMPACT,
        EAGER,
        topic_config("basic", "leader.replication.throttled.replicas", "0:1"),
        topic_config("basic", "message.format.version", "2.8"),
        topic_config("basic", "from.a.newer.kafka", "x"),
        config(4, "", "sasl.jaas.config", "secret"),
        config(4, "", "log.retention.hours", "1"),
    ]
    write_cluster_metadata(directory, values)
    result = clean(directory, broker_config=properties)["basic-0"]
    assert result.status == "cleaned"
    assert shown(result, "retention.ms")[1] == "DEFAULT_CONFIG"
    assert "secret" not in str(result.to_json())


def test_a_topics_bad_setting_stops_that_topic_only(directory: Path) -> None:
    shutil.copytree(directory / "basic-0", directory / "good-0")
    set_id(directory / "good-0", KEYLESS)
    (directory / "replication-offset-checkpoint").write_text("0\n2\nbasic 0 532\ngood 0 532\n")
    values = [topic("basic", BASIC), COMPACT, topic_config("basic", "delete.retention.ms", "soon")]
    values += [topic("good", KEYLESS), topic_config("good", "cleanup.policy", "compact")]
    write_cluster_metadata(directory, [*values, topic_config("good", "min.cleanable.dirty.ratio", "0")])
    results = clean(directory)
    assert results["good-0"].status == "cleaned"
    assert results["basic-0"].status == "skipped" and "'soon'" in results["basic-0"].reason


def test_invalid_settings_of_a_broker_are_refused_with_file_and_line(directory: Path, tmp_path: Path) -> None:
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT])
    properties = tmp_path / "server.properties"
    properties.write_text("node.id=0\nlog.segment.bytes=many\n")
    assert f"{properties}:2" in str(refused(UsageError, directory, broker_config=properties))


def test_damaged_metadata_is_refused_and_nothing_is_changed(directory: Path) -> None:
    partition = write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT])
    log = partition / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-1])
    before = listing(directory)
    error = refused(CorruptRecordError, directory, in_place=True, dry_run=False, path=log)
    assert error.position is not None
    assert listing(directory) == before


def test_a_single_partition_finds_the_metadata_beside_it(directory: Path) -> None:
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT, EAGER])
    assert clean(directory / "basic-0")["basic-0"].status == "cleaned"


def test_the_metadata_may_be_in_a_directory_of_its_own(directory: Path, tmp_path: Path) -> None:
    apart = tmp_path / "metadata"
    write_cluster_metadata(apart, [topic("basic", BASIC), COMPACT, EAGER])
    shutil.copy2(directory / "meta.properties", apart)
    (apart / ".kafka_cleanshutdown").touch()
    error = refused(DirectoryRefusedError, directory, path=directory, advice="metadata.log.dir")
    assert "--broker-config" in str(error) and "ZooKeeper" not in str(error)
    assert clean(directory, apart)["basic-0"].status == "cleaned"
    properties = tmp_path / "server.properties"
    for names in (f"metadata.log.dir={apart}", f"log.dirs={apart}, {directory}"):
        properties.write_text(f"log.dir=/nowhere\n{names}\n")
        assert clean(directory, broker_config=properties)["basic-0"].status == "cleaned"
    (apart / "meta.properties").write_text("version=1\ncluster.id=another\nnode.id=0\n")
    assert "cluster.id" in str(refused(DirectoryRefusedError, directory, broker_config=properties))


def test_a_directory_of_a_broker_with_zookeeper_needs_a_config_file(directory: Path) -> None:
    (directory / "meta.properties").write_text("version=0\ncluster.id=c\nbroker.id=0\n")
    refused(DirectoryRefusedError, directory, path=directory, advice="--config-file")


def test_only_committed_records_of_the_metadata_are_used(directory: Path) -> None:
    off = topic_config("basic", "cleanup.policy", "delete")
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT, EAGER, off])
    assert clean(directory)["basic-0"].reason == "cleanup.policy=delete"
    high = directory / "replication-offset-checkpoint"
    high.write_text("0\n2\nbasic 0 532\n__cluster_metadata 0 4\n")
    assert clean(directory)["basic-0"].status == "cleaned"


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.clean, "__kwdefaults__", {**app.clean.__kwdefaults__, "engine": in_process})


@pytest.mark.usefixtures("without_spark")
def test_the_command_shows_settings_with_their_sources(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT])
    write_metadata_log(directory / "__cluster_metadata-0", [EAGER], base=3)
    command = ["clean", str(directory), "--policy-from-metadata", "--now-ms", "1795230724700"]
    assert run([*command, "--dry-run", "-v"]) == 0
    shown = capsys.readouterr()
    text = " ".join(shown.out.split())
    assert "cleanup.policy=compact (DYNAMIC_TOPIC_CONFIG)" in text and "(DEFAULT_CONFIG)" not in text
    assert "up to offset 4" in shown.err and "no --broker-config" in shown.err
    assert run([*command, "--in-place", "--all-topics", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    by_topic = {log["topic"]: log for log in document["logs"]}
    assert by_topic["basic"]["status"] == "cleaned"
    assert by_topic["basic"]["settings"]["segment.ms"]["source"] == "DEFAULT_CONFIG"
    assert len(document["notes"]) == 2


@pytest.mark.usefixtures("without_spark")
def test_a_refused_directory_is_one_line_and_exit_status_1(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "meta.properties").write_text("version=0\ncluster.id=c\nbroker.id=0\n")
    assert run(["clean", str(directory), "--in-place", "--policy-from-metadata"]) == 1
    assert "--config-file" in capsys.readouterr().err


def test_recovery_uses_the_topics_own_settings(directory: Path) -> None:
    index = topic_config("basic", "index.interval.bytes", "100")
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT, index])
    partition = directory / "basic-0"
    rebuilt = {}
    for settings in ((), ("index.interval.bytes=4096",)):
        for path in partition.glob("*.index"):
            path.unlink()
        app.recover([directory], config=settings)
        rebuilt[settings] = sum(path.stat().st_size for path in partition.glob("*.index"))
    assert rebuilt[()] > 2 * rebuilt["index.interval.bytes=4096",]


def test_recovery_continues_without_metadata_that_cannot_be_read(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (write_cluster_metadata(directory, [COMPACT]) / f"{0:020d}.log").write_bytes(b"garbage" * 20)
    (result,) = app.recover([directory], dry_run=True)
    assert {str(log.topic_partition): log.needs_attention for log in result.logs}["basic-0"] is False
    assert "settings are not known" in caplog.text


def test_recovery_uses_the_brokers_own_settings_and_finds_its_metadata(
    directory: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "metadata"
    elsewhere.mkdir()
    shutil.copy(directory / "meta.properties", elsewhere)
    write_cluster_metadata(elsewhere, [topic("basic", BASIC)])
    properties = tmp_path / "server.properties"
    partition, sizes = directory / "basic-0", {}
    for interval in (100, 4096):
        properties.write_text(f"metadata.log.dir={elsewhere}\nlog.index.interval.bytes={interval}\n")
        for path in partition.glob("*.index"):
            path.unlink()
        app.recover([directory], broker_config=properties)
        sizes[interval] = sum(path.stat().st_size for path in partition.glob("*.index"))
    assert sizes[100] > 2 * sizes[4096]
    own = topic_config("basic", "index.interval.bytes", "100")
    shutil.rmtree(elsewhere / "__cluster_metadata-0")
    write_cluster_metadata(elsewhere, [topic("basic", BASIC), own])
    for path in partition.glob("*.index"):
        path.unlink()
    app.recover([directory], broker_config=properties)
    assert sum(path.stat().st_size for path in partition.glob("*.index")) == sizes[100]


def test_recovery_refuses_a_bad_broker_config_before_anything_is_changed(
    directory: Path, tmp_path: Path
) -> None:
    before = listing(directory)
    properties = tmp_path / "server.properties"
    properties.write_text("log.index.interval.bytes=many\n")
    with raises_error(UsageError) as raised:
        app.recover([directory], broker_config=properties)
    assert "index.interval.bytes" in str(raised.value)
    with raises_error(UsageError, about="missing.properties: No such file", advice="pass --broker-config"):
        app.recover([directory], broker_config=tmp_path / "missing.properties")
    assert listing(directory) == before


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A directory whose one topic was made and written with Siltstone: no broker, no metadata log."""
    with st.open(tmp_path / "served", mode="a") as logs:
        policy = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "200"}
        logs.topics.create("users", partitions=1, config=policy)
        for number in range(20):
            st.append(logs["users", 0], [st.NewRecord(key=b"k%d" % (number % 3), value=b"v" * 40)])
    return tmp_path / "served"


def test_settings_of_topics_that_siltstone_created_are_those_of_its_list(served: Path) -> None:
    result = clean(served, dry_run=False, in_place=True, now_ms=None)["users-0"]
    assert (result.status, result.records_after) == ("cleaned", 4)
    assert shown(result, "cleanup.policy") == (("compact",), "siltstone-topics.json")
    ignored = clean(served, policy_from_metadata=False, no_policy_from_metadata=True)["users-0"]
    assert (ignored.status, ignored.reason) == ("skipped", POLICY_UNKNOWN)


def test_a_directory_of_another_topic_than_the_listed_one_is_skipped(served: Path) -> None:
    set_id(served / "users-0", 9)
    result = clean(served)["users-0"]
    assert result.status == "skipped" and topic_id(9) in result.reason


def test_settings_of_a_brokers_topic_that_siltstone_altered_are_used(directory: Path) -> None:
    write_cluster_metadata(
        directory, [topic("basic", BASIC), COMPACT, topic_config("basic", "retention.ms", "5")]
    )
    entry = TopicEntry(
        topic_id=topic_id(BASIC), partitions=(0,), uncreated=(), config={"cleanup.policy": "delete"}
    )
    write_registry(directory, NO_TOPICS.with_topic("basic", entry))
    result = clean(directory)["basic-0"]
    assert (result.status, result.reason) == ("skipped", "cleanup.policy=delete")


def test_a_broker_without_its_metadata_is_refused_despite_the_topic_registry(directory: Path) -> None:
    entry = TopicEntry(topic_id="", partitions=(0,), uncreated=(), config={"cleanup.policy": "compact"})
    write_registry(directory, NO_TOPICS.with_topic("basic", entry))
    (directory / "theirs-0").mkdir()
    refused(DirectoryRefusedError, directory, path=directory, about="__cluster_metadata-0")


def test_the_metadata_is_used_without_a_flag_and_ignored_with_one(directory: Path) -> None:
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT, EAGER])
    result = clean(directory, policy_from_metadata=False)["basic-0"]
    assert result.status == "cleaned"
    assert shown(result, "cleanup.policy") == (("compact",), "DYNAMIC_TOPIC_CONFIG")
    ignored = clean(directory, policy_from_metadata=False, no_policy_from_metadata=True)["basic-0"]
    assert (ignored.status, ignored.reason) == ("skipped", POLICY_UNKNOWN)
    both = {"policy_from_metadata": True, "no_policy_from_metadata": True}
    refused(UsageError, directory, **both, about="--no-policy-from-metadata", advice="one of")


def test_a_setting_by_hand_does_not_make_an_unknown_policy_known(directory: Path) -> None:
    options = {"policy_from_metadata": False, "topics": ["basic"]}
    unknown = clean(directory, **options, config=["delete.retention.ms=5"])["basic-0"]
    assert (unknown.status, unknown.reason) == ("skipped", POLICY_UNKNOWN)
    known = clean(directory, **options, config=["cleanup.policy=delete"])["basic-0"]
    assert (known.status, known.reason) == ("skipped", "cleanup.policy=delete")


def test_damaged_metadata_is_refused_with_the_way_around_it(directory: Path) -> None:
    write_cluster_metadata(directory, [topic("basic", BASIC), COMPACT, EAGER])
    (segment,) = (directory / "__cluster_metadata-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    before = listing(directory)
    options = {"policy_from_metadata": False, "dry_run": False, "in_place": True}
    refused(CorruptRecordError, directory, **options, path=segment, advice="--no-policy-from-metadata")
    assert listing(directory) == before
    by_hand = {"topics": ["basic"], "config": ["cleanup.policy=compact", "min.cleanable.dirty.ratio=0"]}
    assert clean(directory, **options, **by_hand, no_policy_from_metadata=True)["basic-0"].status == "cleaned"


def test_partitions_of_a_topic_with_different_ids_are_skipped(directory: Path) -> None:
    """One of them is left of a deleted topic; without the metadata nothing says which."""
    shutil.copytree(directory / "basic-0", directory / "basic-1")
    options = {"policy_from_metadata": False, "topics": ["basic"], "config": ["cleanup.policy=compact"]}
    assert {result.status for result in clean(directory, **options, high_watermark="end").values()} == {
        "cleaned"
    }
    set_id(directory / "basic-1", 9)
    results = clean(directory, **options, high_watermark="end")
    assert {result.status for result in results.values()} == {"skipped"}
    assert topic_id(BASIC) in results["basic-0"].reason and topic_id(9) in results["basic-1"].reason

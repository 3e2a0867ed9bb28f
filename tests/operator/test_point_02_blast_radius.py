"""2. Blast radius: only what was named is changed."""

from pathlib import Path
from typing import Any

import pytest

from siltstone.base.errors import DirectoryRefusedError, SiltstoneError, UsageError
from siltstone.commands import clean as app
from siltstone.compaction.inplace.planning import POLICY_UNKNOWN
from tests.support.operator.staged import in_process, listing, no_engine, stage, stage_several

NOW_MS = 1_795_230_724_700
TOPICS_CONFIG = Path(__file__).resolve().parents[1] / "support" / "operator" / "topics.config"


def refused(request: app.CleanRequest, *words: str, kind: type[SiltstoneError] = UsageError) -> None:
    """The request is refused in one line that has these words, and nothing is changed."""
    before = [listing(directory) for directory in request.directories]
    with pytest.raises(kind) as caught:
        app.clean(request, engine=no_engine)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert [listing(directory) for directory in request.directories] == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"in_place": False}, ["--in-place", "--out"]),
        ({"out": Path("new")}, ["--in-place", "--out"]),
        ({"topics": ()}, ["--config", "--topic"]),
        ({"topics": ("nowhere",)}, ["nowhere"]),
        ({"config": ["cleanup.policy=keep"]}, ["cleanup.policy", "keep", "compact"]),
        ({"config": ["cleanup.polici=compact"]}, ["cleanup.polici", "cleanup.policy"]),
        ({"config": ["segment.bytes=many"]}, ["segment.bytes", "many"]),
        ({"config": ["cleanup.policy"]}, ["key=value"]),
        ({"high_watermark": "start"}, ["start", "end"]),
    ],
)
def test_ambiguous_flags_are_wrong_usage(
    golden: Path, tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    refused(stage(golden, "basic", tmp_path / "data").asking(**changes), *words)


def test_only_the_named_topic_is_touched(golden: Path, tmp_path: Path) -> None:
    directory, request = stage_several(golden, ["basic", "tombstones"], tmp_path)
    before = listing(directory / "tombstones-0")
    (result,) = app.clean(
        app.CleanRequest(
            directories=[directory],
            in_place=True,
            topics=["basic"],
            config=["cleanup.policy=compact", "min.cleanable.dirty.ratio=0"],
            now_ms=request.now_ms,
        ),
        engine=in_process,
    ).results
    assert (result.topic, result.status) == ("basic", "cleaned")
    assert listing(directory / "tombstones-0") == before


def test_without_a_policy_nothing_is_cleaned(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    before = listing(staged.directory)
    (result,) = app.clean(staged.asking(topics=(), config=(), force=True), engine=no_engine).results
    assert (result.status, result.reason) == ("skipped", POLICY_UNKNOWN)
    assert listing(staged.directory) == before


def test_a_whole_broker_is_changed_only_where_a_policy_says_so(stopped_broker: tuple[Path, Path]) -> None:
    before = {str(root): listing(root) for root in stopped_broker}
    outcome = app.clean(
        app.CleanRequest(
            directories=list(stopped_broker),
            in_place=True,
            config_file=TOPICS_CONFIG,
            now_ms=NOW_MS,
            force=True,
        ),
        engine=in_process,
    )
    cleaned = {result.directory for result in outcome.results if result.status == "cleaned"}
    assert len(cleaned) >= 5
    for root in stopped_broker:
        after, old = listing(root), before[str(root)]
        changed = {name for name in {*after, *old} if after.get(name) != old.get(name)}
        for name in changed - {"cleaner-offset-checkpoint"}:
            assert str((root / name).parent) in cleaned, name
    metadata = [result for result in outcome.results if result.topic == "__cluster_metadata"]
    assert [result.status for result in metadata] == ["skipped"]
    assert "never cleaned" in metadata[0].reason
    assert {Path(passed_over.path).name.rpartition("-")[2] for passed_over in outcome.passed_over} == {
        "delete"
    }


def test_the_clusters_metadata_is_not_touched_even_when_it_is_named(
    stopped_broker: tuple[Path, Path],
) -> None:
    root = stopped_broker[0]
    before = listing(root / "__cluster_metadata-0")
    (result,) = app.clean(
        app.CleanRequest(
            directories=[root],
            in_place=True,
            topics=["__cluster_metadata"],
            config=["cleanup.policy=compact"],
            force=True,
            drop_keyless=True,
            high_watermark="end",
        ),
        engine=no_engine,
    ).results
    assert result.status == "skipped"
    assert listing(root / "__cluster_metadata-0") == before


def test_records_without_a_key_are_removed_only_with_the_flag(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "keyless", tmp_path / "data")
    before = listing(staged.directory)
    result = staged.clean_one()
    assert result.status == "skipped"
    assert "202 records without a key" in result.reason and "--drop-keyless" in result.reason
    assert listing(staged.directory) == before
    result = staged.clean_one(drop_keyless=True)
    assert (result.status, result.discarded.keyless) == ("cleaned", 202)


def test_tiered_logs_are_skipped(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    before = listing(staged.directory)
    result = staged.clean_one(config=[*staged.request.config, "remote.storage.enable=true"])
    assert result.status == "skipped" and "remote.storage.enable" in result.reason
    assert listing(staged.directory) == before


def test_every_effective_setting_is_shown_with_its_source(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    lines = tmp_path / "topics.config"
    lines.write_text("# ours\nbasic:cleanup.policy=compact\nbasic:delete.retention.ms=77\n")
    result = staged.clean_one(
        config=["min.cleanable.dirty.ratio=0.1"], config_file=lines, dry_run=True, in_place=False
    )
    shown: Any = result.to_json()["settings"]
    assert shown["cleanup.policy"] == {"value": ["compact"], "source": f"{lines}:2"}
    assert shown["delete.retention.ms"] == {"value": 77, "source": f"{lines}:3"}
    assert shown["min.cleanable.dirty.ratio"] == {"value": 0.1, "source": "--config"}
    assert shown["segment.bytes"] == {"value": 1 << 30, "source": "DEFAULT_CONFIG"}
    acted_on = {
        "min.compaction.lag.ms",
        "max.compaction.lag.ms",
        "index.interval.bytes",
        "producer.id.expiration.ms",
    }
    assert acted_on <= set(shown)


def test_a_topic_id_that_does_not_match_is_skipped(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    other = stage(golden, "basic", tmp_path / "other")
    other.partition.rename(staged.directory / "basic-1")
    high = staged.directory / "replication-offset-checkpoint"
    high.write_text("0\n2\nbasic 0 532\nbasic 1 532\n")
    for number, letter in enumerate("AB"):
        (staged.directory / f"basic-{number}" / "partition.metadata").write_text(
            f"version: 0\ntopic_id: {letter * 22}\n"
        )
    before = listing(staged.directory)
    results = app.clean(staged.request, engine=no_engine).results
    assert [result.status for result in results] == ["skipped", "skipped"]
    assert all("topic id" in result.reason for result in results)
    assert listing(staged.directory) == before


def test_directories_of_two_brokers_are_refused(golden: Path, tmp_path: Path) -> None:
    first, second = (stage(golden, name, tmp_path / name) for name in ("basic", "tombstones"))
    text = (second.directory / "meta.properties").read_text().replace("node.id=0", "node.id=1")
    (second.directory / "meta.properties").write_text(text)
    request = first.asking(directories=[first.directory, second.directory])
    refused(request, "node.id", "0 and 1", kind=DirectoryRefusedError)


def test_one_partition_twice_is_refused(golden: Path, tmp_path: Path) -> None:
    first, second = (stage(golden, "basic", tmp_path / name) for name in ("a", "b"))
    request = first.asking(directories=[first.directory, second.directory])
    refused(request, "basic-0", kind=DirectoryRefusedError)


@pytest.mark.parametrize("flag", ["out", "keep_originals", "report", "spill_dir"])
def test_outputs_inside_a_log_directory_are_refused(golden: Path, tmp_path: Path, flag: str) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    request = staged.asking(**{flag: staged.directory / "inside", "in_place": flag != "out"})
    refused(request, f"--{flag.replace('_', '-')}", "inside")


@pytest.mark.parametrize("flag", ["keep_originals", "spill_dir"])
def test_a_log_directory_itself_is_no_folder_for_outputs(golden: Path, tmp_path: Path, flag: str) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    (tmp_path / "link").symlink_to(staged.directory)
    for path in (staged.directory, tmp_path / "link"):
        refused(staged.asking(**{flag: path}), f"--{flag.replace('_', '-')}", "no broker would start")


def test_kept_originals_are_not_for_a_store(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local folder of that name was made, and inside the log directory if that was the current one."""
    staged = stage(golden, "basic", tmp_path / "data")
    monkeypatch.chdir(staged.directory)
    refused(staged.asking(keep_originals=Path("s3://bucket/keep")), "--keep-originals", "object store")
    assert not (staged.directory / "s3:").exists()


def test_a_link_out_of_the_directory_is_not_followed(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "basic", tmp_path / "data")
    other = stage(golden, "tombstones", tmp_path / "other")
    (staged.directory / "tombstones-0").symlink_to(other.partition)
    before = listing(other.directory)
    with pytest.raises(UsageError, match="tombstones"):
        staged.clean(topics=("tombstones",))
    outcome = staged.clean()
    assert [passed_over.reason for passed_over in outcome.passed_over] == ["a symbolic link"]
    assert listing(other.directory) == before

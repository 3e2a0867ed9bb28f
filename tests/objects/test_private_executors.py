"""A cluster whose workers share no folder with the driver reads from a bucket and cleans to one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import siltstone as st
from siltstone.base import files
from siltstone.base.files.backups import restore_points
from tests.objects.test_spark import same_files
from tests.support.objects.store import upload
from tests.support.spark.standalone import Cluster, hiding, standalone_cluster

pytestmark = pytest.mark.long
NOW_MS = 1_900_000_000_000


@pytest.fixture
def drivers(tmp_path: Path) -> Path:
    """The driver's own folder: its temporary files, and the folder of ``--spill-dir``."""
    path = tmp_path / "driver"
    path.mkdir()
    (path / "seen").touch()
    return path


@pytest.fixture
def cluster(drivers: Path, tmp_path: Path, bucket: str) -> Iterator[Cluster]:
    """Its workers see an empty folder in the place of the driver's."""
    (tmp_path / "cluster").mkdir()
    with standalone_cluster(tmp_path / "cluster", hidden=[drivers]) as cluster:
        yield cluster


def make_log(path: Path, values: int) -> None:
    """One log that is cleaned in stages, a small one, and one that stays as it is."""
    with st.open(path, mode="a") as logs:
        compacted = {"cleanup.policy": "compact", "segment.bytes": "30000000"}
        logs.topics.create("large", 1, {**compacted, "compression.type": "uncompressed"})
        logs.topics.create("users", 2, {"cleanup.policy": "compact", "segment.bytes": "20000"})
        logs.topics.create("events", 1, {})
        for number in range(values):
            logs.send("large", b"%08d" % number * 12_500, key=b"%d" % (number % 60))
        for number in range(500):
            logs.send("users", b"value %d" % number, key=b"%d" % (number % 97))
            logs.send("events", b"event")


@pytest.mark.timeout(600)
def test_workers_need_none_of_the_drivers_folders(
    store: Any, bucket: str, tmp_path: Path, drivers: Path, cluster: Cluster
) -> None:
    list_command = [*hiding([drivers]), "ls", str(drivers)]
    assert subprocess.run(list_command, check=True, capture_output=True, text=True).stdout == ""
    make_log(tmp_path / "logs", 800)
    upload(store, tmp_path / "logs", "one")
    shutil.rmtree(tmp_path / "logs")
    source, target = f"s3://{bucket}/one", Path(f"s3://{bucket}/on-spark")
    alone = Path(f"s3://{bucket}/in-process")
    outcome = st.clean(source, out=alone, engine="process", force=True, now_ms=NOW_MS)
    expected = {(log.topic, log.partition): log.status for log in outcome.results}
    assert list(expected.values()).count("cleaned") >= 2

    def on_cluster(*words: str) -> Any:
        return cluster.siltstone(words, environment={"TMPDIR": str(drivers)})

    def statuses(document: Any) -> dict[tuple[str, int], str]:
        return {(log["topic"], log["partition"]): log["status"] for log in document["logs"]}

    cleaning = ["clean", source, "--force", "--now-ms", str(NOW_MS)]
    assert statuses(on_cluster(*cleaning, "--dry-run")) == expected
    document = on_cluster(*cleaning, "--all-topics", "--out", f"s3://{bucket}/on-spark")
    assert document["engine"] == f"spark {cluster.master}"
    assert statuses(document) == expected
    assert same_files(restore_points(target)[0], restore_points(alone)[0])
    verified = on_cluster("verify", source, f"s3://{bucket}/on-spark")
    assert verified["status"] == "ok", verified
    assert not [path for path in drivers.rglob("*") if path.suffix in (".log", ".index", ".piece")]
    assert list(cluster.folder.rglob("siltstone-new-*")) == []
    assert not files.exists(target / "writer.json")

"""Delta and Iceberg tables in a bucket: a version is whole or not there, whatever becomes of requests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

import siltstone as st
from siltstone.base import files
from siltstone.base.errors import UsageError
from siltstone.base.files import objects
from siltstone.tables.lakes import table as lakes
from siltstone.tables.lakes.table import read_footer
from tests.support.objects.faulty import BUSY, DENIED, LOST, OrderedProxy, faulty_proxy, ordered_proxy
from tests.support.objects.store import upload
from tests.support.thoroughness import THOROUGH, few

COMMIT = {"delta": "_delta_log", "iceberg": "metadata.json"}
RECORDS = 40


@pytest.fixture(params=COMMIT)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# In every run: each view and each form once; each two values of a loss; each library's own commit.
VIEWS = few(product(COMMIT, ("latest", "log")), 0, 3)
LOSSES = few(product(COMMIT, (LOST, BUSY), (False, True)), 0, 3, 5, 6)
REFUSALS = few(product(COMMIT, ("/data/", "commit")), 0, 1, 3)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    path = tmp_path / "logs"
    send(path, 0)
    return path


def send(path: Path, first: int) -> None:
    with st.open(path, mode="a") as opened:
        if not first:
            opened.topics.create("users", 2, {"cleanup.policy": "compact"})
        for number in range(first, first + RECORDS):
            opened.send("users", b"value %d" % number, key=b"%d" % (number % 17))


@pytest.fixture(scope="module")
def own_proxy(s3_url: str) -> Iterator[OrderedProxy]:
    with ordered_proxy(s3_url) as proxy:
        yield proxy


@pytest.fixture
def proxy(bucket: str, own_proxy: OrderedProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[OrderedProxy]:
    monkeypatch.setattr(objects, "RETRIES", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", own_proxy.url)
    files.forget_options()
    yield own_proxy
    own_proxy.live()
    own_proxy.fail()


def values(target: str, form: str, url: str, version: int | None) -> list[bytes]:
    """The table's values as the formats' own libraries read them from S3, by their own clients."""
    if form == "delta":
        options = {"aws_endpoint": url, "allow_http": "true"}
        table = DeltaTable(target, storage_options=options).to_pyarrow_table()
    else:
        keys = {"s3.access-key-id": "test", "s3.secret-access-key": "test", "s3.region": "us-east-1"}
        metadata = f"{target}/metadata/v{version}.metadata.json"
        table = StaticTable.from_metadata(metadata, {"s3.endpoint": url, **keys}).scan().to_arrow()
    return sorted(table["value"].to_pylist())


def expected(logs: Path, view: str = "latest") -> list[bytes]:
    with st.open(logs) as opened:
        return sorted(
            value
            for number in range(2)
            for value in st.to_arrow(opened["users", number], view=view)["value"].to_pylist()
        )


@pytest.mark.parametrize(("form", "view"), VIEWS)
def test_what_is_new_is_merged_or_appended(
    view: str, form: str, logs: Path, bucket: str, s3_url: str
) -> None:
    target = f"s3://{bucket}/lake/users"
    st.export(logs, target, form, "users", view=view)
    send(logs, RECORDS)
    exported = st.export(logs, target, form, "users", view=view)
    assert values(target, form, s3_url, exported.version) == expected(logs, view)
    assert st.export(logs, target, form, "users", view=view).version == exported.version
    with pytest.raises(UsageError, match="view="):
        st.export(logs, target, form, "users", view="log" if view == "latest" else "latest")


@pytest.mark.parametrize(("form", "fault", "exists"), LOSSES)
def test_a_commit_whose_answer_gets_lost_is_done_once(
    fault: str, exists: bool, form: str, logs: Path, bucket: str, s3_url: str, proxy: OrderedProxy
) -> None:
    target = f"s3://{bucket}/lake/users"
    if exists:
        st.export(logs, target, form, "users", view="latest")
        send(logs, RECORDS)
    proxy.fail(fault, words=("PUT", COMMIT[form]))
    exported = st.export(logs, target, form, "users", view="latest")
    assert proxy.met == 1
    assert exported.records > 0
    assert values(target, form, s3_url, exported.version) == expected(logs)


@pytest.mark.parametrize(("form", "words"), REFUSALS)
def test_an_export_that_is_refused_leaves_the_old_version(
    words: str, form: str, logs: Path, bucket: str, s3_url: str, proxy: OrderedProxy
) -> None:
    target = f"s3://{bucket}/lake/users"
    first = st.export(logs, target, form, "users", view="latest")
    before = values(target, form, s3_url, first.version)
    send(logs, RECORDS)
    proxy.fail(DENIED, words=("PUT", COMMIT[form] if words == "commit" else words))
    with pytest.raises(PermissionError, match="does not allow"):
        st.export(logs, target, form, "users", view="latest")
    assert values(target, form, s3_url, first.version) == before
    exported = st.export(logs, target, form, "users", view="latest")
    assert values(target, form, s3_url, exported.version) == expected(logs)


def test_a_process_that_dies_leaves_a_whole_table(
    form: str, logs: Path, bucket: str, s3_url: str, proxy: OrderedProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it were killed after any request; the next export goes on."""
    monkeypatch.setattr(objects, "RETRIES", 0)
    monkeypatch.setattr(objects, "BROKEN_TRIES", 1)
    step = 0
    while True:
        target = f"s3://{bucket}/{step}"
        proxy.die_after(step)
        try:
            st.export(logs, target, form, "users", view="latest")
            break
        except OSError:
            proxy.live()
            files.forget_options()
            exported = st.export(logs, target, form, "users", view="latest")
            assert values(target, form, s3_url, exported.version) == expected(logs)
            step += 3 if THOROUGH else 9
    assert step > 8


def test_targets_that_are_no_table_are_refused(form: str, logs: Path, bucket: str, store: Any) -> None:
    upload(store, logs, "broker")
    for source, target, words in (
        (logs, f"s3://{bucket}/broker", "other files"),
        (f"s3://{bucket}/broker", f"s3://{bucket}/broker/lake", "no broker would start"),
    ):
        with pytest.raises(UsageError, match=words):
            st.export(source, target, form, "users")


def test_a_source_in_the_bucket_is_exported_with_the_options_of_the_call(
    form: str, logs: Path, bucket: str, store: Any, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(store, logs, "broker")
    options = {"aws_endpoint": s3_url, "aws_access_key_id": "id", "aws_secret_access_key": "key"}
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    target = f"s3://{bucket}/lake"
    exported = st.export(
        f"s3://{bucket}/broker", target, form, "users", view="latest", storage_options=options
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    assert values(target, form, s3_url, exported.version) == expected(logs)


def test_a_footer_is_read_without_the_file(
    logs: Path, bucket: str, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    st.export(logs, tmp_path / "lake", "parquet", "users")
    path = next((tmp_path / "lake").glob("part-*"))
    size = path.stat().st_size
    with faulty_proxy(s3_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        files.forget_options()
        stored = files.absolute(Path(f"s3://{bucket}/one.parquet"))
        files.put_file(path, stored)
        for fetched, requests in ((64 << 10, 1), (100, 2)):
            monkeypatch.setattr(lakes, "_FOOTER_BYTES", fetched)
            with proxy.recording() as requests_made:
                footer = read_footer(stored, size)
            assert len(requests_made) == requests
            assert footer.equals(read_footer(path, size))

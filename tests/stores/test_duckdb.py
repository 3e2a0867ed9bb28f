"""DuckDB's own extensions for Delta and Iceberg read tables in a bucket. They come from PyPI, in the version
of the DuckDB beside them, since DuckDB's server of extensions may not be reached."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import siltstone as st
from tests.stores.conftest import opened_bucket
from tests.support.objects.packages import pypi_package
from tests.support.objects.servers import Server, moto, s3proxy

pytestmark = pytest.mark.long
DUCKDB, EXTENSIONS = "1.5.5", ("httpfs", "avro", "delta", "iceberg")
QUERY = """
import json, sys
import duckdb

endpoint, *extensions, table = sys.argv[1:]
connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
for path in extensions:
    connection.execute(f"LOAD '{path}'")
keys = "KEY_ID 'test', SECRET 'test', REGION 'us-east-1', URL_STYLE 'path', USE_SSL false"
connection.execute(f"CREATE SECRET (TYPE s3, {keys}, ENDPOINT '{endpoint}')")
columns = '"offset", decode(key), decode(value)'
print(json.dumps(connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1").fetchall()))
"""


@pytest.fixture(scope="module", params=[moto, s3proxy])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with request.param() as server:
        yield server


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from opened_bucket(server, monkeypatch)


def rows_of(table: str, server: Server) -> list[list[object]]:
    """What DuckDB finds in a table, in a process that has this DuckDB and not the project's."""
    paths = [
        pypi_package(f"duckdb-extension-{name}", DUCKDB)
        / f"duckdb_extension_{name}/extensions/v{DUCKDB}/{name}.duckdb_extension"
        for name in EXTENSIONS
    ]
    words = [server.url.removeprefix("http://"), *map(str, paths), table]
    environment = {"PYTHONPATH": str(pypi_package("duckdb", DUCKDB))}
    completed = subprocess.run(
        [sys.executable, "-c", QUERY, *words], capture_output=True, text=True, check=False, env=environment
    )
    assert completed.returncode == 0, completed.stderr
    rows: list[list[object]] = json.loads(completed.stdout)
    return rows


@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_duckdb_reads_a_table_that_grows(form: str, server: Server, root: str, tmp_path: Path) -> None:
    """After the first export, after one that merges key buckets, and after one that writes all anew."""
    logs, target = tmp_path / "logs", f"{root}/lake/users"
    with st.open(logs, mode="a") as opened:
        opened.topics.create("users", 1, {"cleanup.policy": "compact"})
    for turn, mode in enumerate(["append", "append", "overwrite"]):
        with st.open(logs, mode="a") as opened:
            for number in range(60):
                opened.send("users", b"value %d %d" % (turn, number), key=b"%d" % (number % (7 + turn)))
        expected = st.to_arrow(st.open(logs)["users", 0], view="latest").sort_by("offset").to_pylist()
        how = {"mode": mode} if mode == "overwrite" else {"buckets": 4} if turn == 0 else {}
        export = st.export(logs, target, form, "users", view="latest", **how)
        assert export.records > 0
        rows = rows_of(f"{form}_scan('{target}')", server)
        assert rows == [[row["offset"], row["key"].decode(), row["value"].decode()] for row in expected]
        assert len(rows) == 7 + turn

"""Delta and Iceberg tables in every store: made, brought up to date, and read by the formats' libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

import siltstone as st
from siltstone.base import files
from siltstone.base.errors import TableChangedError
from siltstone.tables.arguments import read_options
from siltstone.tables.lakes.delta import DeltaLake
from siltstone.tables.lakes.export import export_in_process
from siltstone.tables.lakes.iceberg import IcebergLake
from siltstone.tables.lakes.iceberg_files import StoreFiles
from siltstone.tables.lakes.plan import plan_export
from tests.stores.test_contract import keys
from tests.support.objects.servers import Server

FORMS = {"delta": DeltaLake, "iceberg": IcebergLake}


def newest(form: str, target: str, version: int | None, server: Server, client: Any) -> Any:
    """The offsets of the table's version, by the format's library; the client has the files."""
    if form == "delta":
        table = DeltaTable(target, storage_options={**server.config, "allow_http": "true"})
        assert table.version() == version
        uris = table.file_uris()
    else:
        hint = bytes(client.get("lake/users/metadata/version-hint.text").bytes())
        assert int(hint) == version
        place = {"py-io-impl": f"{StoreFiles.__module__}.{StoreFiles.__qualname__}"}
        static = StaticTable.from_metadata(f"{target}/metadata/v{version}.metadata.json", place)
        uris = [task.file.file_path for task in static.scan().plan_files()]
    assert all(uri.startswith(f"{target}/data/") or form == "delta" for uri in uris)
    contents = [client.get(f"lake/users/data/{uri.rpartition('/')[2]}").bytes() for uri in uris]
    rows = pa.concat_tables(pq.read_table(pa.BufferReader(bytes(data))) for data in contents)
    return sorted(rows["offset"].to_pylist())


@pytest.mark.parametrize("form", FORMS)
def test_a_table_is_made_and_brought_up_to_date(
    form: str, server: Server, broker: Path, root: str, client: Any
) -> None:
    """Of two writers one commits; the other leaves no file."""
    target = f"{root}/lake/users"
    with st.open(broker) as logs:
        offsets = sorted(st.to_arrow(logs["users", 0], view="latest")["offset"].to_pylist())
    created = st.export(broker, target, form, "users", view="latest", buckets=2)
    assert created.records == len(offsets) > 5
    assert newest(form, target, created.version, server, client) == offsets
    again = st.export(broker, target, form, "users", view="latest")
    assert (again.version, again.files) == (created.version, 0)
    slow = FORMS[form](files.absolute(Path(target)))
    options = read_options(broker, "users", None, {}, {"view": "latest"})
    late = plan_export(slow, options, mode="overwrite", compression="zstd", buckets=None)
    replaced = st.export(broker, target, form, "users", view="latest", mode="overwrite")
    data = [key for key in keys(client) if "/data/" in key]
    with pytest.raises(TableChangedError):
        export_in_process(slow, late)
    assert [key for key in keys(client) if "/data/" in key] == data
    assert newest(form, target, replaced.version, server, client) == offsets

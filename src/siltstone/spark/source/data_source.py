"""``spark.read.format("siltstone")``: the class that Spark instantiates with a query's options.

A table in Spark's catalog brings its location and options only when it is made (Spark 4.3: a query of it
comes with none of them). What a query does bring is the schema that we gave then: its metadata keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StructType

from siltstone.base.errors import UsageError
from siltstone.spark.source.reader import BatchReader, StreamReader
from siltstone.spark.source.writer import BatchWriter, StreamWriter
from siltstone.tables.options import ReadOptions
from siltstone.tables.table import table_schema
from siltstone.tables.writing import WriteOptions

_METADATA = "siltstone"


def _keeping(schema: StructType, options: Mapping[str, str]) -> StructType:
    """A catalog table's schema (a ``location`` tells) with its options in the first field's metadata."""
    given = {name.lower(): text for name, text in options.items()}
    if "location" in given and schema.fields:
        schema.fields[0].metadata = {_METADATA: given}
    return schema


def _kept(schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """A query's options over those that its table was made with."""
    kept: dict[str, str] = schema.fields[0].metadata.get(_METADATA, {}) if schema.fields else {}
    return {**kept, **{name.lower(): text for name, text in options.items()}}


def _columns(schema: StructType) -> list[tuple[str, DataType]]:
    return [(field.name, field.dataType) for field in schema.fields]


class SiltstoneSource(DataSource):
    """Log directories as tables; ``ReadOptions`` says what may be asked for."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "siltstone"

    def schema(self) -> StructType:
        """Spark's Kafka source's, of the columns asked for."""
        try:
            options = ReadOptions.of(self.options)
        except UsageError as error:
            options = self._stream_options(error)
        return _keeping(from_arrow_schema(table_schema(options)), self.options)

    def _stream_options(self, error: UsageError) -> ReadOptions:
        """Spark does not say what a schema is for; the error that counts is that of a batch query."""
        try:
            return ReadOptions.of(self.options, streaming=True)
        except UsageError:
            raise error from None

    def reader(self, schema: StructType) -> DataSourceReader:
        """For a batch query. Raises UsageError where somebody gave another schema."""
        options = ReadOptions.of(_kept(schema, self.options))
        own = from_arrow_schema(table_schema(options))
        if _columns(schema) != _columns(own):
            raise UsageError(
                f"the schema of a log is its own: {own.simpleString()}; leave it out, and choose by 'columns'"
            )
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``readStream``."""
        return StreamReader(ReadOptions.of(_kept(schema, self.options), streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``. Raises UsageError, DirectoryLockedError, what looking at a directory raises."""
        return BatchWriter(WriteOptions.of(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For ``df.writeStream``. Raises as ``writer`` does."""
        return StreamWriter(WriteOptions.of(self.options), schema, overwrite)

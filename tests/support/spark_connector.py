"""What Spark's own Kafka connector does with a broker: ``spark_connector.py BOOTSTRAP JARS CHECKPOINT``.

It runs in the connector's environment: it imports pyspark and nothing of this project. It writes 10,000
records to ``sparkin``, reads them in several ways, streams them to ``sparkout``, and prints counts as JSON.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

ROWS = 10_000


def main(bootstrap: str, jars: str, checkpoint: str) -> None:
    """Write, read, stream, and print what was found."""
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    to_broker = {"kafka.bootstrap.servers": bootstrap}
    rows = session.range(ROWS).selectExpr("cast(id as string) key", "concat('v', id) value")
    rows.write.format("kafka").options(**to_broker, topic="sparkin").save()
    source = session.read.format("kafka").options(**to_broker, subscribe="sparkin")
    loaded = source.load().selectExpr("cast(key as string) key", "cast(value as string) value")
    by_time = source.option("startingTimestamp", "1").load()
    stream = session.readStream.format("kafka").options(
        **to_broker, subscribe="sparkin", startingOffsets="earliest", maxOffsetsPerTrigger="3000"
    )
    query = stream.load().select("key", "value").writeStream.format("kafka")
    query = query.options(**to_broker, topic="sparkout", checkpointLocation=checkpoint)
    query.trigger(availableNow=True).start().awaitTermination(120)
    streamed = session.read.format("kafka").options(**to_broker, subscribe="sparkout").load()
    counts = {
        "read": loaded.distinct().count(),
        "value": [row.value for row in loaded.where("key = '77'").collect()],
        "by_time": by_time.count(),
        "streamed": streamed.select("key").distinct().count(),
    }
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

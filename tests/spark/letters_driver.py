"""A Spark driver to kill: a rate-limited stream from a topic, whose malformed records become letters in another topic.

Tests start it as `python letters_driver.py SERVERS TOPIC FOLDER MODE`. It prints `begun` once the stream runs and never
ends. Mode `option` writes letters by the option deadLetterTopic, and rows to a folder; mode `transactions` routes rows
and letters by the sink, as docs/recipes.md does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

RECORDS = int(os.environ.get("KAFKAMETA_LETTERS", "100000"))
BATCHES = 25


def start(spark: SparkSession, servers: str, topic: str, folder: Path, mode: str, **trigger: Any) -> StreamingQuery:
    """Start or continue the query from the checkpoint in the folder."""
    kafka = {"kafka.bootstrap.servers": servers}
    reading = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(RECORDS // BATCHES)}
    reading |= {"valueFormat": "json", "valueSchema": "id BIGINT"}
    if mode == "option":
        reading |= {"onMalformedRecord": "deadLetter", "deadLetterTopic": f"{topic}-letters"}
    else:
        reading |= {"onMalformedRecord": "record", "includeRaw": "true"}
    rows = spark.readStream.format("kafkameta").options(**kafka, **reading).load()
    if mode == "option":
        sink = rows.selectExpr("value.id", "partition", "offset").writeStream.format("parquet")
        sink = sink.option("path", str(folder / "rows"))
    else:
        said = {name: name for name in ("topic", "partition", "offset")} | {"exception.message": "value_error.cause"}
        header = "struct('__connect.errors.{}' AS key, encode({}, 'UTF-8') AS value)"
        headers = [header.format(name, column) for name, column in said.items()]
        routed = f"if(value_error IS NULL, '{topic}-copy', '{topic}-letters') AS topic"
        optional = f"if(value_error IS NULL, NULL, array({', '.join(headers)})) AS headers"
        sink = rows.selectExpr(routed, "key", "value_raw AS value", optional).writeStream.format("kafkameta")
        sink = sink.options(**kafka, **{"kafka.transactional.id": topic})
    return sink.option("checkpointLocation", str(folder / "checkpoint")).trigger(**trigger).start()


def main(servers: str, topic: str, folder: Path, mode: str) -> None:
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder / "spark"),
    }
    spark = SparkSession.builder.master("local[2,8]").config(map=settings).getOrCreate()
    query = start(spark, servers, topic, folder, mode, processingTime="0 seconds")
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])

"""A Spark application that does what a test asks.

Each line of standard input is a JSON list of a function below and its arguments. The reply is a line of JSON, with
`result` or `error`.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

Options = dict[str, str]


class Functions:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._queries: dict[str, StreamingQuery] = {}

    def values(self, options: Options) -> list[int]:
        """The values of all records, sorted."""
        rows = self._spark.read.format("kafkameta").options(**options).load()
        return sorted(int(row.value) for row in rows.select("value").collect())

    def start(self, name: str, source: Options, sink: Options) -> None:
        """Copy a topic twice a second."""
        rows = self._spark.readStream.format("kafkameta").options(**source).load().select("key", "value")
        writer = rows.writeStream.format("kafkameta").options(**sink)
        self._queries[name] = writer.trigger(processingTime="500 milliseconds").start()

    def stop(self, name: str) -> None:
        """Stop a query once it has copied everything."""
        query = self._queries.pop(name)
        query.processAllAvailable()
        query.stop()

    def table(self, name: str, columns: list[str], options: Options) -> list[list[object]]:
        """These columns of a side table, without a shuffle, whose files would keep executors of dynamic allocation."""
        rows = self._spark.read.format("kafkameta").options(**options, table=name).load()
        return [list(row) for row in set(rows.select(*columns).collect())]


def main() -> None:
    spark = SparkSession.builder.appName("several hosts").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    functions = Functions(spark)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            reply = {"result": getattr(functions, name)(*arguments)}
        except Exception as error:
            reply = {"error": str(error)}
        sys.stdout.write(json.dumps(reply, default=str) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()

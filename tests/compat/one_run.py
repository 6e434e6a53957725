"""One run with Trigger.AvailableNow of the stream of `killed_driver`: prints the rows of each micro-batch.

Tests start it as `python one_run.py SERVERS TOPIC FOLDER`, with the Python of any release of pyspark.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.killed_driver import start
from tests.spark.traces import rows_by_batch


def main(servers: str, topic: str, folder: Path) -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.local.dir", str(folder / "spark")).getOrCreate()
    query = start(spark, servers, topic, folder, availableNow=True)
    assert query.awaitTermination(120), "the query did not end"
    sys.stdout.write(json.dumps(rows_by_batch(query)) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

"""A Spark application with eager speculative execution that copies a topic to Parquet.

`test_speculation.py` starts it as `python speculative_copy.py batch|stream MASTER FOLDER`. FOLDER/options.json has the
options of the source. FOLDER/copied.json gets [partition, offset] of each row in the sink, in order.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

EAGER_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}
BOTH_WORKERS = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
}


def main(mode: str, master: str, folder: Path) -> None:
    settings: dict[str, Any] = {**EAGER_SPECULATION, **BOTH_WORKERS, "spark.ui.enabled": "false"}
    options = json.loads((folder / "options.json").read_text())
    with SparkSession.builder.master(master).config(map=settings).getOrCreate() as spark:
        if mode == "batch":
            rows = spark.read.format("kafkameta").options(**options).load()
            rows.select("partition", "offset").write.parquet(str(folder / "rows"))
        else:
            rows = spark.readStream.format("kafkameta").options(**options).load().select("partition", "offset")
            sink = rows.writeStream.format("parquet").option("path", str(folder / "rows"))
            query = sink.option("checkpointLocation", str(folder / "state")).trigger(availableNow=True).start()
            assert query.awaitTermination(120), "the query did not end"
        # Spark reads the files that a stream has committed. The folder may also have a file of the attempt that lost.
        copied = spark.read.parquet(str(folder / "rows")).orderBy("partition", "offset").collect()
    (folder / "copied.json").write_text(json.dumps(copied))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

"""Read a topic into polars and DuckDB, without Spark.

    pip install polars duckdb
    python examples/producer.py                       # writes records to read
    python examples/read_without_spark.py

You will see the number of records in each partition, by both:

    shape: (2, 2)
    ┌───────────┬─────┐
    │ partition ┆ len │
    │ ---       ┆ --- │
    │ i32       ┆ u32 │
    ╞═══════════╪═════╡
    │ 0         ┆ 400 │
    │ 1         ┆ 600 │
    └───────────┴─────┘
"""

from __future__ import annotations

import argparse

import duckdb
import polars

from pyspark_kafka_meta import read_arrow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    options = parser.parse_args()
    kafka = {"kafka.bootstrap.servers": options.bootstrap_servers, "subscribe": options.topic}

    frame = polars.DataFrame(read_arrow(**kafka))
    print(frame.group_by("partition").len().sort("partition"))

    rows = duckdb.from_arrow(read_arrow(**kafka, columns=["partition"]))  # no other column is decoded
    print(rows.query("rows", "SELECT partition, count(*) FROM rows GROUP BY ALL ORDER BY ALL"))


if __name__ == "__main__":
    main()

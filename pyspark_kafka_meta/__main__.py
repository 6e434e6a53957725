"""`python -m pyspark_kafka_meta` is the `kafkameta` command."""

from pyspark_kafka_meta.tools.cli import run

run()

"""`python -m pyspark_kafka_meta` is the `kafkameta` command."""

from pyspark_kafka_meta.tools.cli.main import app

app()

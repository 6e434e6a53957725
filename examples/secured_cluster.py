"""Read from a cluster that wants TLS and a login, with a file of properties as Kafka's own tools take.

    python examples/secured_cluster.py --bootstrap-servers broker:9093 --topic orders --config client.properties

The file (for you alone: `chmod 600 client.properties`) keeps the password off the command line, where everybody on the
machine could read it, and out of the code:

    security.protocol=SASL_SSL
    ssl.truststore.location=/etc/kafka/authority.pem
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";

`sasl.username` and `sasl.password` do in place of the last line. Each line becomes an option `kafka.NAME`. The
truststore is PEM or PKCS#12; a Java one (JKS) is refused with the command that converts it. You will see:

    20 records read over SASL_SSL
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import SparkSession


def source_options(file: Path) -> dict[str, str]:
    """The properties in a file, as options of the source. A line that ends in a backslash continues in the next."""
    try:
        lines = [line.strip() for line in file.read_text().replace("\\\n", " ").splitlines()]
    except (OSError, UnicodeDecodeError):
        raise SystemExit(f"{file} cannot be read: it must be a text file of lines NAME=VALUE") from None
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    if not all(sign for _, sign, _ in pairs):  # the line is not repeated, as it may hold a secret
        raise SystemExit(f"{file} must hold lines NAME=VALUE")
    return {f"kafka.{name.strip()}": value.strip() for name, _, value in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    parser.add_argument("--config", type=Path, required=True, help="file of the properties of a Kafka client")
    options = parser.parse_args()
    cluster = {**source_options(options.config), "kafka.bootstrap.servers": options.bootstrap_servers}

    spark = SparkSession.builder.appName("secured cluster").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    records = spark.read.format("kafkameta").options(**cluster).option("subscribe", options.topic).load()
    print(f"{records.count()} records read over {cluster.get('kafka.security.protocol', 'PLAINTEXT')}")
    spark.stop()


if __name__ == "__main__":
    main()

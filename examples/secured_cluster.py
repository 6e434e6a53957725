"""Read from a cluster with TLS and SASL, with a properties file as for Kafka's own tools.

    python examples/secured_cluster.py --bootstrap-servers broker:9093 --topic orders --config client.properties

The file (private: `chmod 600 client.properties`) keeps the password out of the code and off the command line, which all
users of the machine can read:

    security.protocol=SASL_SSL
    ssl.truststore.location=/etc/kafka/authority.pem
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";

`sasl.username` and `sasl.password` can replace the last line. Each line becomes an option `kafka.NAME`. The truststore
is PEM or PKCS#12; the error for a Java truststore (JKS) contains the command that converts it. You will see:

    20 records read over SASL_SSL
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import SparkSession


def source_options(file: Path) -> dict[str, str]:
    """The properties of a file as options of the source. A backslash at the end of a line continues the line."""
    try:
        lines = [line.strip() for line in file.read_text().replace("\\\n", " ").splitlines()]
    except (OSError, UnicodeDecodeError):
        raise SystemExit(f"{file} cannot be read: it must be a text file of lines NAME=VALUE") from None
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    if not all(sign for _, sign, _ in pairs):  # the error does not repeat the line, which may contain a secret
        raise SystemExit(f"{file} must hold lines NAME=VALUE")
    return {f"kafka.{name.strip()}": value.strip() for name, _, value in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    parser.add_argument("--config", type=Path, required=True, help="properties file of a Kafka client")
    options = parser.parse_args()
    cluster = {**source_options(options.config), "kafka.bootstrap.servers": options.bootstrap_servers}

    spark = SparkSession.builder.appName("secured cluster").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    records = spark.read.format("kafkameta").options(**cluster).option("subscribe", options.topic).load()
    print(f"{records.count()} records read over {cluster.get('kafka.security.protocol', 'PLAINTEXT')}")
    spark.stop()


if __name__ == "__main__":
    main()

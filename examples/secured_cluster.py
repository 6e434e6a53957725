"""Read from a cluster that wants TLS and a login, with the file of properties that Kafka's own tools take.

    python examples/secured_cluster.py --bootstrap-servers broker:9093 --topic orders --config client.properties

The file (for you alone: `chmod 600 client.properties`) keeps the password off the command line, where everybody on the
machine could read it, and out of the code:

    security.protocol=SASL_SSL
    ssl.truststore.location=/etc/kafka/authority.pem
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";

`sasl.username` and `sasl.password` do in place of the last line. The truststore is PEM or PKCS#12; a Java one (JKS) is
refused with the command that converts it. You will see:

    20 records read over SASL_SSL
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from pyspark.sql import SparkSession


def properties(file: Path) -> dict[str, str]:
    """The properties in the file, by name, one a line; lines that begin with # are comments."""
    found = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            name, _, value = line.partition("=")
            if not re.fullmatch(r"[a-z.]+", name.strip()):
                raise SystemExit(f"line {number} of {file} is not name=value")  # and it may be a part of a secret
            found[name.strip()] = value.strip()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    parser.add_argument("--config", type=Path, required=True, help="file of the properties of a Kafka client")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("secured cluster").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    login = properties(options.config)
    records = (
        spark.read.format("kafkameta")
        .option("kafka.bootstrap.servers", options.bootstrap_servers)
        .option("subscribe", options.topic)
        .options(**{f"kafka.{name}": value for name, value in login.items()})
        .load()
    )
    print(f"{records.count()} records read over {login.get('security.protocol', 'PLAINTEXT')}")
    spark.stop()


if __name__ == "__main__":
    main()

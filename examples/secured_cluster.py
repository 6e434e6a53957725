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
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_kafka_meta.cli.parameters import cluster_options
from pyspark_kafka_meta.errors import OptionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-servers", default="localhost:19092")
    parser.add_argument("--topic", default="topic-0")
    parser.add_argument("--config", type=Path, required=True, help="file of the properties of a Kafka client")
    options = parser.parse_args()
    try:
        cluster = cluster_options(options.bootstrap_servers, None, options.config)
    except OptionError as error:
        raise SystemExit(str(error)) from None  # which repeats no line, as it may hold a secret

    spark = SparkSession.builder.appName("secured cluster").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    records = spark.read.format("kafkameta").options(**cluster).option("subscribe", options.topic).load()
    print(f"{records.count()} records read over {cluster.get('kafka.security.protocol', 'PLAINTEXT')}")
    spark.stop()


if __name__ == "__main__":
    main()

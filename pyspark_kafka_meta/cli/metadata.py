"""`kafkameta metadata`: one Metadata request to the first broker that answers, shown as tables."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError
from pyspark_kafka_meta.metadata.model import Address, MetadataAnswer
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.reading.client import connection_settings
from pyspark_kafka_meta.wire.brokers import KafkaWire
from pyspark_kafka_meta.wire.codes import describe


def show_metadata(bootstrap_servers: str, topics: Collection[str] | None, timeout_ms: int) -> None:
    """Print the cluster as the first address that answers sees it.

    Raises:
        OptionError: `bootstrap_servers` cannot be read.
        ConnectError: no address answered; the text tells what each did.
    """
    options = ClientOptions.parse({"kafka.bootstrap.servers": bootstrap_servers})
    address, answer, latency_ms = _ask(options, topics, timeout_ms)
    console = Console()
    console.print(
        f"Cluster [bold]{answer.cluster_id}[/], controller {answer.controller_id}; {address} answered Metadata "
        f"v{answer.api_version} in {latency_ms:.1f} ms with {answer.response_bytes} bytes"
    )
    console.print(_brokers_table(answer))
    console.print(_topics_table(answer))


def _ask(
    options: ClientOptions, topics: Collection[str] | None, timeout_ms: int
) -> tuple[Address, MetadataAnswer, float]:
    deadline = time.monotonic() + timeout_ms / 1000
    wire = KafkaWire(replace(connection_settings(options), connect_timeout_ms=timeout_ms))
    failures = []
    try:
        for remaining, address in zip(
            range(len(options.bootstrap_servers), 0, -1), options.bootstrap_servers, strict=True
        ):
            asked_at = time.monotonic()
            try:
                answer = wire.metadata(address, topics, asked_at + (deadline - asked_at) / remaining)
            except KafkaMetaError as error:
                failures.append(str(error))
            else:
                return address, answer, (time.monotonic() - asked_at) * 1000
    finally:
        wire.close()
    raise ConnectError(f"no broker answered: {'; '.join(failures)}. Check the addresses and that the brokers are up")


def _brokers_table(answer: MetadataAnswer) -> Table:
    table = Table("id", "host", "port", "rack", "", title="Brokers in the cluster", title_justify="left")
    for broker in sorted(answer.brokers):
        role = "controller" if broker.node_id == answer.controller_id else ""
        table.add_row(str(broker.node_id), broker.address.host, str(broker.address.port), broker.rack or "", role)
    return table


def _topics_table(answer: MetadataAnswer) -> Table:
    columns = ("topic", "partition", "leader", "epoch", "replicas", "in sync", "")
    table = Table(*columns, title="Topics and leaders", title_justify="left")
    for topic in sorted(answer.topics, key=lambda one: one.name):
        if topic.error_code:
            table.add_row(topic.name, "", "", "", "", "", describe(topic.error_code))
        for partition in sorted(topic.partitions, key=lambda one: one.partition):
            table.add_row(
                topic.name,
                str(partition.partition),
                str(partition.leader_id) if partition.leader_id >= 0 else "none",
                str(partition.leader_epoch),
                " ".join(map(str, partition.replicas)),
                " ".join(map(str, partition.isr)),
                describe(partition.error_code) if partition.error_code else "",
            )
    return table

"""`kafkameta metadata`: one Metadata request to the first broker that answers, shown as tables."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from pyspark_kafka_meta.metadata.model import MetadataAnswer
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.live import ask_cluster
from pyspark_kafka_meta.wire.codes import describe


def show_metadata(bootstrap_servers: str, topics: Collection[str] | None, timeout_ms: int) -> None:
    """Print the cluster as the first address that answers sees it.

    Raises:
        OptionError: `bootstrap_servers` cannot be read.
        ConnectError: no address answered; the text tells what each did.
    """
    options = ClientOptions.parse({"kafka.bootstrap.servers": bootstrap_servers})
    within = replace(options, default_api_timeout_ms=timeout_ms, connection_setup_timeout_ms=timeout_ms)
    told = ask_cluster(within, topics)
    answer = told.answer
    console = Console()
    console.print(
        f"Cluster [bold]{answer.cluster_id}[/], controller {answer.controller_id}; {told.address} answered Metadata "
        f"v{answer.api_version} in {told.latency_ms:.1f} ms with {answer.response_bytes} bytes"
    )
    console.print(_brokers_table(answer))
    console.print(_topics_table(answer))


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

"""The options of a query that writes records.

Names, defaults and error texts follow Spark's `KafkaSourceProvider` and Kafka's `ProducerConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafka_meta.options import checks
from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap
from pyspark_kafka_meta.options.client import CLIENT_OPTIONS, ClientOptions
from pyspark_kafka_meta.options.definitions import (
    Option,
    documented_names,
    parse_options,
    row,
    table_of,
    taken,
    with_effect,
)
from pyspark_kafka_meta.options.metrics import METRICS_OPTIONS, MetricsOptions
from pyspark_kafka_meta.options.producer import PRODUCER_OPTIONS, ProducerOptions
from pyspark_kafka_meta.options.security_checks import complete_security
from pyspark_kafka_meta.options.tables import OPTION_NAMES
from pyspark_kafka_meta.options.transactions import TRANSACTION_OPTIONS, TransactionOptions
from pyspark_kafka_meta.validators import topic_name


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one query. Its client is that of a query which reads with the same `ClientOptions` and
    `MetricsOptions`."""

    client: ClientOptions
    metrics: MetricsOptions
    producer: ProducerOptions
    transaction: TransactionOptions
    topic: str | None = row(
        "topic",
        None,
        topic_name,
        "Option 'topic' must be the name of one topic, got '{value}'",
        "Topic to write all rows to; takes precedence over the column topic.",
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parses options by name in any case. Spark passes the location of the checkpoint to the sink too.

        Raises:
            OptionError: one line for each missing, unknown or invalid option.
        """
        options = CaseInsensitiveMap(CaseInsensitiveMap(options).without("checkpointLocation"))
        options = with_effect(options, _READ_ONLY, "in a write")
        parsed, problems = parse_options(options, SINK_OPTIONS)
        if parsed.get("acks") == 1 and "kafka.enable.idempotence" not in options:
            parsed["idempotent"] = False
        checks.raise_problems(
            problems
            + complete_security(parsed)
            + checks.client_problems(options, checks.NO_SERVERS_TO_WRITE)
            + checks.producer_problems(parsed)
            + checks.transaction_problems(options, parsed)
            + checks.compression_problems(parsed)
            + checks.metrics_problems(options)
        )
        client, producer = taken(ClientOptions, parsed), taken(ProducerOptions, parsed)
        transaction, metrics = taken(TransactionOptions, parsed), MetricsOptions.taken(parsed, client)
        return cls(client=client, producer=producer, transaction=transaction, metrics=metrics, **parsed)

    def for_stream(self) -> SinkOptions:
        """For `df.writeStream`.

        Raises:
            OptionError: an option is for batch writes.
        """
        checks.raise_problems(checks.stream_sink_problems(self.transaction.txn_app_id))
        return self


SINK_OPTIONS: Mapping[str, Option] = (
    table_of(SinkOptions) | PRODUCER_OPTIONS | TRANSACTION_OPTIONS | METRICS_OPTIONS | CLIENT_OPTIONS
)
"""Options by field, as `source.OPTIONS`."""
_READ_ONLY = CaseInsensitiveMap(OPTION_NAMES.without(*documented_names(SINK_OPTIONS)))

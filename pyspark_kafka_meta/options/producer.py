"""The options of clients that write records, `kafka.*`; names and defaults follow Kafka's `ProducerConfig`, but for
larger batches and requests: a task has all its rows at hand."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_kafka_meta.options.definitions import choice, row, table_of, whole
from pyspark_kafka_meta.options.parsers import parse_acks
from pyspark_kafka_meta.validators import INT64_MAX

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How rows become record batches, and when they count as written.

    Attributes:
        acks: -1 for all in-sync replicas.
    """

    acks: int = row(
        "kafka.acks",
        "all",
        parse_acks,
        "Option 'kafka.acks' must be all, -1 or 1, got '{value}'",
        "all (or -1): all in-sync replicas acknowledge a batch. 1: only the leader does, which may lose records.",
    )
    idempotent: bool = choice(
        "kafka.enable.idempotence",
        {"true": True, "false": False},
        "Whether a retry within a task neither duplicates nor reorders records. False by default if kafka.acks is 1.",
    )
    compression_type: str = choice(
        "kafka.compression.type",
        {codec: codec for codec in CODECS},
        "Compression of written records: none, gzip, snappy, lz4 or zstd.",
    )
    gzip_level: int | None = whole("kafka.compression.gzip.level", None, "Compression level of gzip.", 1, 9)
    lz4_level: int | None = whole("kafka.compression.lz4.level", None, "Compression level of lz4.", 1, 17)
    zstd_level: int | None = whole("kafka.compression.zstd.level", None, "Compression level of zstd.", -131072, 22)
    batch_bytes: int = whole(
        "kafka.batch.size",
        "1000000",
        "Maximum size of a record batch after compression, unless one record is larger.",
        low=1,
    )
    max_request_bytes: int = whole(
        "kafka.max.request.size", "8388608", "Maximum size of a request, and of a record before compression.", low=1
    )
    buffer_bytes: int = whole(
        "kafka.buffer.memory",
        "33554432",
        "Maximum size of the batches of a task that brokers have not acknowledged.",
        low=1,
        high=INT64_MAX,
    )
    delivery_timeout_ms: int = whole(
        "kafka.delivery.timeout.ms",
        "120000",
        "Maximum time from a full batch to its acknowledgement, with retries. At least kafka.request.timeout.ms.",
    )
    max_block_ms: int = whole(
        "kafka.max.block.ms", "60000", "Maximum wait for the metadata of a topic.", high=INT64_MAX
    )
    max_in_flight: int = whole(
        "kafka.max.in.flight.requests.per.connection",
        "5",
        "Maximum requests to a broker without a response. At most 5 with idempotence.",
        low=1,
    )
    ignore_keys: bool = choice(
        "kafka.partitioner.ignore.keys",
        {"false": False, "true": True},
        "Whether rows with a key are spread over partitions as rows without a key are.",
    )

    @property
    def compression_level(self) -> int | None:
        """None for the codec's default."""
        return {"gzip": self.gzip_level, "lz4": self.lz4_level, "zstd": self.zstd_level}.get(self.compression_type)


PRODUCER_OPTIONS = table_of(ProducerOptions)

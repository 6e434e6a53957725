"""The options of clients that read records, `kafka.*`; names and defaults follow Kafka's `ConsumerConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_kafka_meta.options.case_insensitive import CaseInsensitiveMap
from pyspark_kafka_meta.options.definitions import choice, label, table_of, whole


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """What a Fetch asks for. No part of `ClientOptions`: a worker that reads and writes has one client."""

    client_rack: str = label(
        "kafka.client.rack",
        "Rack or availability zone of the executors, for local replicas (KIP-392).",
        default="",
    )
    read_committed: bool = choice(
        "kafka.isolation.level",
        {"read_uncommitted": False, "read_committed": True},
        "read_committed skips records of aborted transactions and waits for open transactions.",
    )
    fetch_max_bytes: int = whole("kafka.fetch.max.bytes", "52428800", "Soft limit of a Fetch response.")
    max_partition_fetch_bytes: int = whole(
        "kafka.max.partition.fetch.bytes", "8388608", "Soft limit per partition of a Fetch response."
    )
    fetch_max_wait_ms: int = whole(
        "kafka.fetch.max.wait.ms", "500", "Maximum time that a broker waits for kafka.fetch.min.bytes."
    )
    fetch_min_bytes: int = whole("kafka.fetch.min.bytes", "1", "Available bytes at which a broker responds at once.")
    check_crcs: bool = choice(
        "kafka.check.crcs",
        {"true": True, "false": False},
        "Whether checksums (CRC-32C) of record batches are verified.",
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> FetchOptions:
        """The options of reading among the `kafka.*` options, which `ClientOptions.parse` checks."""
        given = CaseInsensitiveMap(options)
        return cls(
            **{
                field: option.value(given.get(option.name, str(option.default)))
                for field, option in FETCH_OPTIONS.items()
            }
        )


FETCH_OPTIONS = table_of(FetchOptions)

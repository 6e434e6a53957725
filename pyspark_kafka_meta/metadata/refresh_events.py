"""The refresh events: what a metadata cache asked which broker, why, and with what result; frozen, versioned.

No Kafka client publishes these; the reasons name the triggers of Kafka's `Metadata.requestUpdate`, KIP-951 and KIP-899.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum

from pyspark_kafka_meta.metadata.snapshot_changes import SnapshotChanges
from pyspark_kafka_meta.model import RefreshReason, TopicPartition

SCHEMA_VERSION = 1
"""Version of what `RefreshEvent.to_dict` makes: grows when a field changes its meaning or goes, not for a new one."""


@dataclass(frozen=True, slots=True)
class RefreshCause:
    """What made a refresh due.

    Attributes:
        error_code: Kafka's error code, 0 if it was none.
        partition: where it showed, None if it is not about one partition.
        node_id: the broker that it came from, None if it is not about one broker.
    """

    reason: RefreshReason
    error_code: int = 0
    partition: TopicPartition | None = None
    node_id: int | None = None


class EventKind(StrEnum):
    BORN = "born"
    """The cache was made, and knows nothing yet: the first of its events."""
    REFRESH = "refresh"
    """One Metadata request, answered or not."""
    HINT = "hint"
    """One leader taken over from a hint (KIP-951), without a request."""
    CLOSED = "closed"
    """The cache ended in good order: the last of its events. If one is killed, the next that is born reports it."""
    DATA_LOSS = "data_loss"
    """Records of one partition were skipped, as failOnDataLoss or another option allows; no request was made."""


@dataclass(frozen=True, slots=True)
class BrokerFetches:
    """What Fetch got from one broker.

    Attributes:
        broker_id: node id.
        requests: Fetch requests that it answered.
        response_bytes: size of the answers with their length prefixes, bytes.
    """

    broker_id: int
    requests: int
    response_bytes: int


class Role(StrEnum):
    READER = "reader"
    """In a task."""
    PLANNER = "planner"
    """Beside the driver."""
    CLI = "cli"


class Outcome(StrEnum):
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The Spark context of an event. None where there is no such thing: a planner has no task, a batch no query.

    Attributes:
        role: what the process does: reader (in a task), planner (beside the driver) or cli.
        application_id: `spark.app.id`; null for a planner, as Spark passes it no application, query or batch.
        executor_id: Spark's id of the executor; "driver" in local mode and for a planner.
        host: name of the machine that the process runs on.
        pid: operating system id of the process that holds the cache.
        query_id: of the streaming query; the same after a restart from its checkpoint.
        batch_id: of the micro-batch, from 0.
        stage_id: of the Spark stage.
        task_partition_id: of the task in its stage, from 0; not a Kafka partition.
        task_attempt: of the task, from 0; above 0 it is a retry.
    """

    role: Role
    application_id: str | None = None
    executor_id: str | None = None
    host: str | None = None
    pid: int | None = None
    query_id: str | None = None
    batch_id: int | None = None
    stage_id: int | None = None
    task_partition_id: int | None = None
    task_attempt: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshEvent:
    """A cache was made; or sent, or tried to send, one Metadata request; or took one leader hint; or its reader skipped
    records that are lost.

    Attributes:
        schema_version: `SCHEMA_VERSION` of the code that made the event.
        cache_id: random, one for each cache; a process that is restarted has a new one.
        sequence: number of the event among those of its cache, from 1; a gap is a lost event.
        cluster_id: of the cluster that the last good answer was about, this one included; None before the first.
        time_ms: wall clock when it ended, ms since 1970 UTC.
        kind: born, refresh, hint, closed or data_loss.
        reason: why.
        cause_error_code: Kafka's error code that led to it, 0 if none did.
        cause_topic: topic that the trouble showed in, None if it was not in one; that of the records that are lost.
        cause_partition: partition of that topic.
        cause_node_id: broker that the trouble came from, None if it is not about one.
        broker_id: node id of the broker asked; None where none was, and for an address that is no known broker's.
        broker_host: host asked, None where none was.
        broker_port: port asked, None where none was.
        api_version: version of the Metadata request; None, as are the next three and throttle_ms, without an answer.
        correlation_id: of the request on its connection.
        request_bytes: size of the request with its length prefix, bytes.
        response_bytes: size of the answer with its length prefix, bytes.
        throttle_ms: how long the broker held the answer back for a quota, ms.
        latency_ms: from the start of the attempt, connecting included, until the answer or failure was taken, ms; None
            without one. A task takes it between two record batches.
        attempt: number of the attempt since the last good answer, from 1; 0 where none was made.
        outcome: changed, unchanged or failed.
        error: why it failed, None if it did not; how records were lost.
        generation_before: good answers that the cache had got before.
        generation_after: the same, this one included; a hint and a failure leave it.
        age_ms: age of the last good answer when this attempt began, ms; None without one.
        recovery_ms: from the beginning of the trouble to this event, ms; None unless this event ended it, 0 for a
            hint that came with the very error.
        idle_ms: from the last look-up of a leader to the beginning of this attempt, ms; None before the first.
        lookups: leaders looked up in the cache since its event before, counted without a request.
        fetches: what Fetch got since its event before, from each broker, by id.
        retries: times since its event before that a request failed, or a partition in its answer had an error that may
            pass, so that it was to be asked again.
        fetch_throttle_ms: ms for which brokers throttled Fetch since its event before (KIP-219), summed.
        lost_from_offset: first lost offset; None, as is the next, unless kind is data_loss.
        lost_until_offset: end of the lost offsets, exclusive; None if that is not known. Reading continues there, or
            in a truncated log at lost_from_offset.
        died_cache_ids: caches of the same application on the same machine whose process ended without a closed event;
            only where kind is born, and each reported once.
        dropped_before: events of this cache that did not get to where this one is, as far as was known when it was sent
            and not reported by an earlier one.
        changes: what the cache knows now and did not before.
        origin: the Spark context, attached by the publisher.
    """

    schema_version: int = SCHEMA_VERSION
    cache_id: str
    sequence: int
    cluster_id: str | None = None
    time_ms: int
    kind: EventKind
    reason: RefreshReason
    cause_error_code: int
    cause_topic: str | None
    cause_partition: int | None
    cause_node_id: int | None
    broker_id: int | None = None
    broker_host: str | None = None
    broker_port: int | None = None
    api_version: int | None = None
    correlation_id: int | None = None
    request_bytes: int | None = None
    response_bytes: int | None = None
    throttle_ms: int | None = None
    latency_ms: float | None = None
    attempt: int = 0
    outcome: Outcome
    error: str | None = None
    generation_before: int
    generation_after: int
    age_ms: float | None
    recovery_ms: float | None = None
    idle_ms: float | None
    lookups: int
    fetches: tuple[BrokerFetches, ...] = ()
    retries: int = 0
    fetch_throttle_ms: int = 0
    lost_from_offset: int | None = None
    lost_until_offset: int | None = None
    died_cache_ids: tuple[str, ...] = ()
    dropped_before: int = 0
    changes: SnapshotChanges = field(default_factory=SnapshotChanges)
    origin: Origin | None = None

    def to_dict(self) -> dict[str, object]:
        """One flat row, ready for JSON: the event's own fields, those of `changes`, those of `origin` (all None
        without one), always in this order."""
        row = asdict(self)
        changes, origin = row.pop("changes"), row.pop("origin")
        for name in ("partitions_added", "partitions_removed"):
            changes[name] = tuple(one._asdict() for one in changes[name])
        return {**row, **changes, **(origin or dict.fromkeys(one.name for one in fields(Origin)))}

    def to_json(self) -> str:
        """`to_dict` as a line of JSON: what files, topics and logs hold."""
        return json.dumps(self.to_dict())

"""The brokers: whether each bootstrap and each advertised address answers, how fast, and what it lacks.

The probe is an ordinary connection, so that its errors are those that a read would meet.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from pyspark_kafka_meta.doctor.findings import Finding, fail, failure, ok, warn
from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError
from pyspark_kafka_meta.model import Address, Broker, MetadataResponse
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.wire import translate_metadata
from pyspark_kafka_meta.wire.codec import FETCH, LIST_OFFSETS, METADATA, Api
from pyspark_kafka_meta.wire.connection import Connection, ConnectionSettings

ROUND_TRIPS = 5
AT_ONCE = 16
SLOW_MS = 100.0
"""A round trip from which on it is worth a warning: each Fetch of each task takes one at least."""

_LACKS = (
    (13, "3.1", "records are fetched by name: a topic recreated while it is read may be noticed late"),
    (16, "3.7", "a moved leader costs a metadata refresh, because brokers do not name the new one in Fetch answers"),
)
"""Fetch versions, the Kafka release that brought each, and what is missing without it (KIP-516, KIP-951)."""


@dataclass(frozen=True, slots=True)
class Reached:
    """What an address answered.

    Attributes:
        connect_ms: name resolution, TCP, TLS, ApiVersions and login together.
        latency_ms: of a Metadata request for no topic, the median of `ROUND_TRIPS`.
        versions: the newest that both sides speak.
    """

    connect_ms: float
    latency_ms: float
    versions: Mapping[Api, int]
    answer: MetadataResponse


Reaches = Mapping[Address, Reached | KafkaMetaError]


def reach_all(addresses: Collection[Address], options: ClientOptions) -> Reaches:
    """What each answers, or why it does not, by the time-outs of the options."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kafkameta-doctor") as pool:
        return dict(zip(addresses, pool.map(lambda one: _try(one, options), addresses), strict=True))


def answered(reaches: Reaches) -> dict[Address, Reached]:
    return {address: one for address, one in reaches.items() if isinstance(one, Reached)}


def bootstrap_findings(reaches: Reaches) -> Iterator[Finding]:
    """One answer is enough for a read, so a dead address beside it is a warning."""
    good = answered(reaches)
    for address, one in reaches.items():
        check = f"bootstrap {address}"
        if isinstance(one, Reached):
            yield ok(check, _speed(one))
        elif good:
            yield warn(check, str(one), f"take it out of kafka.bootstrap.servers, or: {failure(check, one).fix}")
        else:
            yield failure(check, one)
    clusters = {one.answer.cluster_id: address for address, one in good.items()}
    if len(clusters) > 1:
        told = ", ".join(f"{address} is of {cluster}" for cluster, address in clusters.items())
        yield fail("bootstrap", f"the addresses lead to several clusters: {told}", "name brokers of one cluster alone")


def broker_findings(brokers: Sequence[Broker], reaches: Reaches, rack: str) -> Iterator[Finding]:
    """Findings on the addresses that brokers advertise, which is where reads go.

    Args:
        reaches: what these addresses answered.
        rack: kafka.client.rack, empty if it is not given.
    """
    if not brokers:
        yield fail("brokers", "the cluster knows none of its brokers", "wait until they have started, and look again")
    for broker in sorted(brokers):
        yield _broker_finding(broker, reaches[broker.address])
    yield from shared_addresses(brokers)
    if good := answered(reaches):
        yield versions_finding([one.versions for one in good.values()])
    racks = {broker.rack for broker in brokers if broker.rack}
    if rack and rack not in racks:
        told = (
            f"kafka.client.rack is {rack}, and no broker is in it: theirs are {', '.join(sorted(racks)) or 'not set'}"
        )
        yield warn("rack", told, "set it to a broker.rack of the cluster, or leave it out: reads go to the leaders")


def shared_addresses(brokers: Collection[Broker]) -> Iterator[Finding]:
    """Brokers that cannot be distinguished, as behind one forwarded port or load balancer."""
    for address in sorted({broker.address for broker in brokers}):
        ids = [str(broker.node_id) for broker in sorted(brokers) if broker.address == address]
        if len(ids) > 1:
            told = f"brokers {', '.join(ids)} all advertise {address}, so that a leader cannot be chosen"
            yield fail("brokers", told, "give each broker an address of its own in its advertised.listeners")


def versions_finding(versions: Sequence[Mapping[Api, int]]) -> Finding:
    """By the least of the brokers."""
    least = {api: min(one[api] for one in versions) for api in versions[0]}
    spoken = ", ".join(f"{api.title} v{version}" for api, version in least.items())
    lacking = [(release, text) for since, release, text in _LACKS if least[FETCH] < since]
    if lacking:
        return warn(
            "versions", f"{spoken}: {lacking[0][1]}", f"upgrade brokers to Apache Kafka {lacking[-1][0]} or later"
        )
    return ok("versions", spoken)


def _broker_finding(broker: Broker, reached: Reached | KafkaMetaError) -> Finding:
    check = f"broker {broker.node_id}"
    if isinstance(reached, ConnectError):
        fix = (
            f"set advertised.listeners of broker {broker.node_id} to an address that clients can reach, which "
            f"{broker.address} is not from here; or repair name resolution, firewalls or the broker itself"
        )
        return fail(check, f"it advertises {broker.address}: {reached}", fix)
    if isinstance(reached, KafkaMetaError):
        return failure(check, reached)
    if reached.latency_ms > SLOW_MS:
        return warn(check, f"{broker.address}: {_speed(reached)}", "run the executors closer to the brokers")
    return ok(check, f"{broker.address}: {_speed(reached)}")


def _speed(reached: Reached) -> str:
    return f"connected in {reached.connect_ms:.1f} ms, answers in {reached.latency_ms:.2f} ms"


def _try(address: Address, options: ClientOptions) -> Reached | KafkaMetaError:
    try:
        return _reach(address, options)
    except KafkaMetaError as error:
        return error


def _reach(address: Address, options: ClientOptions) -> Reached:
    started = time.monotonic()
    deadline = started + options.default_api_timeout_ms / 1000
    with closing(Connection(address, ConnectionSettings.of(options), deadline)) as connection:
        connect_ms = (time.monotonic() - started) * 1000
        versions = {api: connection.version(api) for api in (METADATA, LIST_OFFSETS, FETCH)}
        request = translate_metadata.metadata_request(versions[METADATA], ())
        exchanges = [connection.call(METADATA, request, deadline) for _ in range(ROUND_TRIPS)]
    answer = translate_metadata.metadata_response(exchanges[-1], ())
    return Reached(connect_ms, median(one.latency_ms for one in exchanges), versions, answer)

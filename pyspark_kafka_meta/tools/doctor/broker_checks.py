"""Check the brokers: whether each bootstrap and advertised address responds, how fast, and with which API versions.

The probe is a normal connection, so it fails with the errors of a read.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.protocol import metadata
from pyspark_kafka_meta.kafka.protocol.frame_codec import FETCH, LIST_OFFSETS, METADATA, Api
from pyspark_kafka_meta.model import Address, Broker, MetadataResponse
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tools.doctor.findings import Finding, fail, failure, ok, warn

ROUND_TRIPS = 5
AT_ONCE = 16
SLOW_MS = 100.0
"""Round trips this long cause a warning: each Fetch takes at least a round trip."""

_FEATURES = (
    (13, "3.1", "records are fetched by name: a topic recreated while it is read may be noticed late"),
    (
        16,
        "3.7",
        "a moved leader costs a metadata refresh, because Fetch responses do not name the new leader",
    ),
)
"""Fetch version, its first Kafka release, and the effect of an older version (KIP-516, KIP-951)."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Results of an address that responds.

    Attributes:
        connect_ms: name resolution, TCP, TLS, ApiVersions and login together.
        latency_ms: of a Metadata request without topics, the median of `ROUND_TRIPS`.
        versions: the newest that both sides support.
    """

    connect_ms: float
    latency_ms: float
    versions: Mapping[Api, int]
    response: MetadataResponse


Results = Mapping[Address, Reached | KafkaMetaError]


def reach_all(addresses: Collection[Address], options: ClientOptions) -> Results:
    """The result, or the error, of each address, within the timeouts of the options."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kafkameta-doctor") as pool:
        return dict(zip(addresses, pool.map(lambda address: _try(address, options), addresses), strict=True))


def responding(results: Results) -> dict[Address, Reached]:
    return {address: result for address, result in results.items() if isinstance(result, Reached)}


def bootstrap_findings(results: Results) -> Iterator[Finding]:
    """A read needs one address that responds: other failures are warnings."""
    good = responding(results)
    for address, result in results.items():
        check = f"bootstrap {address}"
        if isinstance(result, Reached):
            yield ok(check, _speed(result))
        elif good:
            yield warn(check, str(result), f"remove it from kafka.bootstrap.servers, or: {failure(check, result).fix}")
        else:
            yield failure(check, result)
    clusters = {result.response.cluster_id: address for address, result in good.items()}
    if len(clusters) > 1:
        found = ", ".join(f"{address} is in {cluster}" for cluster, address in clusters.items())
        yield fail("bootstrap", f"the addresses lead to several clusters: {found}", "list brokers of a single cluster")


def broker_findings(brokers: Sequence[Broker], results: Results, rack: str) -> Iterator[Finding]:
    """Findings on the advertised addresses, which reads use.

    Args:
        results: of these addresses.
        rack: kafka.client.rack, or empty.
    """
    if not brokers:
        yield fail("brokers", "the cluster reports no brokers", "wait until they have started, and try again")
    for broker in sorted(brokers):
        yield _broker_finding(broker, results[broker.address])
    yield from shared_addresses(brokers)
    if good := responding(results):
        yield versions_finding([result.versions for result in good.values()])
    racks = {broker.rack for broker in brokers if broker.rack}
    if rack and rack not in racks:
        known = ", ".join(sorted(racks)) or "not set"
        what = f"kafka.client.rack is {rack}, and no broker is in it: broker.rack of the brokers is {known}"
        yield warn("rack", what, "set it to a broker.rack of the cluster, or remove it: reads go to the leaders")


def shared_addresses(brokers: Collection[Broker]) -> Iterator[Finding]:
    """Findings on brokers with the same address, such as a forwarded port or a load balancer."""
    for address in sorted({broker.address for broker in brokers}):
        ids = [str(broker.node_id) for broker in sorted(brokers) if broker.address == address]
        if len(ids) > 1:
            what = f"brokers {', '.join(ids)} all advertise {address}, so that requests cannot reach a chosen leader"
            yield fail("brokers", what, "give each broker an address of its own in its advertised.listeners")


def versions_finding(versions: Sequence[Mapping[Api, int]]) -> Finding:
    """The lowest version of each API among the brokers."""
    least = {api: min(supported[api] for supported in versions) for api in versions[0]}
    shown = ", ".join(f"{api.title} v{version}" for api, version in least.items())
    lacking = [(release, text) for since, release, text in _FEATURES if least[FETCH] < since]
    if lacking:
        return warn(
            "versions", f"{shown}: {lacking[0][1]}", f"upgrade brokers to Apache Kafka {lacking[-1][0]} or later"
        )
    return ok("versions", shown)


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
    return f"connected in {reached.connect_ms:.1f} ms, responds in {reached.latency_ms:.2f} ms"


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
        request = metadata.metadata_request(versions[METADATA], ())
        exchanges = [connection.call(METADATA, request, deadline) for _ in range(ROUND_TRIPS)]
    response = metadata.metadata_response(exchanges[-1], ())
    return Reached(connect_ms, median(exchange.latency_ms for exchange in exchanges), versions, response)

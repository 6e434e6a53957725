"""Check the connections to the brokers, from this machine, and from executors by a small Spark job.

From here: whether each bootstrap and advertised address responds, how fast, and with which API versions. On executors
also Python, the packages and eventsPath. The probe is a normal connection, so it fails with the errors of a read. The
environment configures Spark: spark-defaults.conf, PYSPARK_SUBMIT_ARGS, PYSPARK_PYTHON.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import ConnectError, KafkaMetaError, OptionError
from pyspark_kafka_meta.events.event import Role
from pyspark_kafka_meta.events.origin import task_origin
from pyspark_kafka_meta.events.sinks import folder_at
from pyspark_kafka_meta.extras import install_command
from pyspark_kafka_meta.java_launcher import HOW_TO_GET_JAVA
from pyspark_kafka_meta.kafka.network.connection import Connection, ConnectionSettings
from pyspark_kafka_meta.kafka.network.sockets import within
from pyspark_kafka_meta.kafka.protocol.apis import FETCH, LIST_OFFSETS, METADATA, Api
from pyspark_kafka_meta.kafka.protocol.metadata import MetadataRequest
from pyspark_kafka_meta.model import NO_LEADER, Address, Broker, MetadataResponse
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.event_file_reader import EventFolder
from pyspark_kafka_meta.tools.doctor import Finding, Verdict, fail, failure, ok, warn
from pyspark_kafka_meta.tools.doctor.machine_checks import DISTRIBUTION, package_findings, version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUND_TRIPS = 5
AT_ONCE = 16
SLOW_MS = 100.0
"""Round trips this long cause a warning: each Fetch takes at least a round trip."""

_FEATURES = (
    (13, "3.1", "records are fetched by name: a topic recreated while it is read may be noticed late"),
    (16, "3.7", "a moved leader costs a metadata refresh, because Fetch responses do not name the new leader"),
)
"""Fetch version, its first Kafka release, and the effect of an older version (KIP-516, KIP-951)."""


SPARK_TIMEOUT_S = 300
TASKS_PER_SLOT = 2
"""So that a fast executor does not take the tasks of another executor."""
MAX_TASKS = 400

Row = tuple[str, str, str, str]
"""The fields of a finding: an executor without this package can send them."""
MarkedFolder = tuple[str, str]
"""A eventsPath, and the name of a file that the driver has written there."""

_PYTHON_FIX = (
    f"set PYSPARK_PYTHON to the path of a Python {sys.version_info[0]}.{sys.version_info[1]} on the executors that has "
    f"{DISTRIBUTION}"
)
_SHARED_FOLDER_FIX = (
    "mount one folder at this path on all machines, or use the URI of one (s3://, gs://, hdfs://), or eventsTopic"
)
_SIGNS = {
    "No module named 'pyspark'": install_command("pyspark"),
    "JAVA_GATEWAY_EXITED": HOW_TO_GET_JAVA,
    "PYTHON_VERSION_MISMATCH": _PYTHON_FIX,
    "Cannot run program": _PYTHON_FIX,
    "Connection reset": _PYTHON_FIX,
    "Python worker": _PYTHON_FIX,
}
"""Fixes by a part of Spark's error, the most specific first."""


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
        return dict(zip(addresses, pool.map(lambda address: _reach(address, options), addresses), strict=True))


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
    """Findings on the advertised addresses, which reads use; `rack` is kafka.client.rack, or empty."""
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


def _reach(address: Address, options: ClientOptions) -> Reached | KafkaMetaError:
    started = time.monotonic()
    deadline = options.api_deadline(started)
    try:
        with closing(Connection(address, ConnectionSettings.of(options), deadline)) as connection:
            connect_ms = (time.monotonic() - started) * 1000
            versions = {api: connection.version(api) for api in (METADATA, LIST_OFFSETS, FETCH)}
            request = MetadataRequest(())
            message = request.encode(versions[METADATA])
            exchanges = [connection.call(METADATA, message, deadline) for _ in range(ROUND_TRIPS)]
        response = request.decode(exchanges[-1], NO_LEADER)
    except KafkaMetaError as error:
        return error
    return Reached(connect_ms, median(exchange.latency_ms for exchange in exchanges), versions, response)


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """A session that waits for its executors and is stopped at the end."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("kafkameta doctor").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF")
    spark = builder.config("spark.scheduler.minRegisteredResourcesRatio", "1.0").getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def executor_findings(
    cluster: Mapping[str, str], addresses: Sequence[Address], events_path: str | None
) -> list[Finding]:
    """Findings on the executors, which share `events_path`, the eventsPath of the queries."""
    if events_path is None:
        return _findings(cluster, addresses, None)
    folder, marker = folder_at(events_path), f"doctor-{uuid.uuid4().hex}"
    try:
        folder.write(marker, b"")
    except OSError as error:
        unwritable = warn("eventsPath", f"the driver cannot write there: {error}", _SHARED_FOLDER_FIX)
        return [unwritable, *_findings(cluster, addresses, None)]
    try:
        return _findings(cluster, addresses, (events_path, marker))
    finally:
        with suppress(OSError):
            folder.delete(marker)


def _findings(cluster: Mapping[str, str], addresses: Sequence[Address], marked: MarkedFolder | None) -> list[Finding]:
    try:
        return within(time.monotonic() + SPARK_TIMEOUT_S, lambda: _run(cluster, addresses, marked))
    except TimeoutError:
        fix = "check that the cluster manager has free resources, and its log"
        return [fail("spark", f"no response from the executors in {SPARK_TIMEOUT_S} s", fix)]
    except Exception as error:  # errors of Spark, py4j, or of a Java that does not start
        return [judge_spark_error(str(error))]


def judge_spark_error(text: str) -> Finding:
    """The finding on an error of Spark: its most specific line, and the fix."""
    lines = [line.strip(" :") for line in text.splitlines() if line.strip()]
    for sign, fix in _SIGNS.items():
        if found := next((line for line in lines if sign in line), None):
            return fail("spark", found[:500], fix)
    fix = "run any small pyspark job there: this job failed before its checks"
    return fail("spark", lines[0][:500] if lines else "the job failed", fix)


def worst_of_each(rows: Iterable[Row]) -> list[Finding]:
    """The worst finding of the tasks for each check of each executor, sorted."""
    severity = list(Verdict)
    found = sorted((Finding(check, Verdict(verdict), what, fix) for check, verdict, what, fix in rows), key=_by_check)
    return [
        max(group, key=lambda finding: severity.index(finding.verdict)) for _, group in groupby(found, key=_by_check)
    ]


def check_executor(
    release: str | None, cluster: Mapping[str, str], addresses: Sequence[tuple[str, int]], marked: MarkedFolder | None
) -> list[Row]:
    """The findings of a task on its executor. `release` is the driver's release of this package."""
    origin = task_origin(Role.CLI)
    who = f"executor {origin.executor_id or 'of unknown id'} on {origin.host}"
    found = [
        replace(finding, check=f"{who}: {finding.check}")
        for finding in package_findings()
        if finding.verdict is Verdict.FAIL
    ]
    if not found:
        found.append(ok(who, f"Python {sys.version.split()[0]} at {sys.executable} has all packages"))
    if (own := version_of(DISTRIBUTION)) != release:
        fix = f"install release {release} of {DISTRIBUTION} on the executors"
        found.append(warn(f"{who}: release", f"{DISTRIBUTION} is {own}, and {release} on the driver", fix))
    found += _connection_findings(who, cluster, [Address(host, port) for host, port in addresses]) if addresses else []
    found += [_folder_finding(f"{who}: eventsPath", *marked)] if marked else []
    return [(finding.check, str(finding.verdict), finding.what, finding.fix) for finding in found]


def _connection_findings(who: str, cluster: Mapping[str, str], addresses: Sequence[Address]) -> list[Finding]:
    try:
        options = ClientOptions.parse(cluster)
    except OptionError as error:  # valid on the driver: a file or an extra is missing here
        return [failure(f"{who}: options", error)]
    results = reach_all(addresses, options)
    lost = [
        failure(f"{who}: {address}", result) for address, result in results.items() if not isinstance(result, Reached)
    ]
    return lost or [ok(f"{who}: brokers", f"all {len(addresses)} can be reached")]


def _folder_finding(check: str, events_path: str, marker: str) -> Finding:
    try:
        is_shared = EventFolder(events_path).has(marker)
    except OSError as error:
        return warn(check, f"cannot be read: {error}", _SHARED_FOLDER_FIX)
    if is_shared:
        return ok(check, "is the driver's folder")
    return warn(check, "is not the driver's folder: tables lack the events of this executor", _SHARED_FOLDER_FIX)


def _run(cluster: Mapping[str, str], addresses: Sequence[Address], marked: MarkedFolder | None) -> list[Finding]:
    release, given = version_of(DISTRIBUTION), dict(cluster)
    targets = [(address.host, address.port) for address in addresses]

    # Nested, so that Spark sends its code: an executor without this package could not import it.
    def check(_: int) -> list[Row]:
        import socket
        import sys

        try:
            # By its name there, and only now: a function of this module would be imported before the task begins.
            from pyspark_kafka_meta.tools.doctor.connection_checks import check_executor

            return check_executor(release, given, targets, marked)
        except Exception as error:
            what = f"{sys.executable} does not have pyspark_kafka_meta as the driver does ({error})"
            fix = "pip install the driver's release of pyspark-kafka-meta into it, or set PYSPARK_PYTHON to another"
            return [(f"executor on {socket.gethostname()}", "fail", what, fix)]

    with spark_session() as spark:
        context = spark.sparkContext
        tasks = min(context.defaultParallelism * TASKS_PER_SLOT, MAX_TASKS)
        rows = context.parallelize(range(tasks), tasks).flatMap(check).collect()
        about_spark = ok("spark", f"{spark.version}, master {context.master}")
        return [about_spark, *worst_of_each(rows)]


def _by_check(finding: Finding) -> str:
    return finding.check

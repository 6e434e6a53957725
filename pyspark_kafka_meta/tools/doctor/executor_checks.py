"""Check the executors with a small Spark job: Python, packages, and the connections to the brokers.

The environment configures Spark: spark-defaults.conf, PYSPARK_SUBMIT_ARGS, PYSPARK_PYTHON.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.events.folder_sink import folder_at
from pyspark_kafka_meta.events.origin import task_origin
from pyspark_kafka_meta.java_launcher import HOW_TO_GET_JAVA
from pyspark_kafka_meta.kafka.metadata.refresh_events import Role
from pyspark_kafka_meta.kafka.network.sockets import within
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.tables.event_file_reader import EventFolder
from pyspark_kafka_meta.tools.doctor.broker_checks import Reached, reach_all
from pyspark_kafka_meta.tools.doctor.findings import Finding, Verdict, fail, failure, ok, warn
from pyspark_kafka_meta.tools.doctor.machine_checks import DISTRIBUTION, package_findings, version_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_TIMEOUT_S = 300
TASKS_PER_SLOT = 2
"""So that a fast executor does not take the tasks of another executor."""
MAX_TASKS = 400

Row = tuple[str, str, str, str]
"""The fields of a finding: an executor without this package can send them."""
MarkedFolder = tuple[str, str]
"""A metricsPath, and the name of a file that the driver has written there."""

_PYTHON_FIX = (
    f"set PYSPARK_PYTHON to the path of a Python {sys.version_info[0]}.{sys.version_info[1]} on the executors that has "
    f"{DISTRIBUTION}"
)
_SHARED_FOLDER_FIX = (
    "mount one folder at this path on all machines, or use the URI of one (s3://, gs://, hdfs://), or metricsTopic"
)
_SIGNS = {
    "JAVA_GATEWAY_EXITED": HOW_TO_GET_JAVA,
    "PYTHON_VERSION_MISMATCH": _PYTHON_FIX,
    "Cannot run program": _PYTHON_FIX,
    "Connection reset": _PYTHON_FIX,
    "Python worker": _PYTHON_FIX,
}
"""Fixes by a part of Spark's error, the most specific first."""


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
    """Findings on the executors.

    Args:
        cluster: the `kafka.*` options.
        addresses: of the brokers.
        events_path: the metricsPath of the queries.
    """
    if events_path is None:
        return _findings(cluster, addresses, None)
    folder, marker = folder_at(events_path), f"doctor-{uuid.uuid4().hex}"
    try:
        folder.write(marker, b"")
    except OSError as error:
        unwritable = warn("metricsPath", f"the driver cannot write there: {error}", _SHARED_FOLDER_FIX)
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
    release: str | None,
    cluster: Mapping[str, str],
    addresses: Sequence[tuple[str, int]],
    marked: MarkedFolder | None,
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
    found += [_folder_finding(f"{who}: metricsPath", *marked)] if marked else []
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

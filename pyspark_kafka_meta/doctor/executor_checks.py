"""The executors: a small Spark job has each look at its own Python, its packages, and the way to the brokers.

Spark, its master and its Python are those of the environment: spark-defaults.conf, PYSPARK_SUBMIT_ARGS, PYSPARK_PYTHON.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from pyspark_kafka_meta.doctor.broker_checks import Reached, reach_all
from pyspark_kafka_meta.doctor.findings import Finding, Verdict, fail, failure, ok, warn
from pyspark_kafka_meta.doctor.machine_checks import DISTRIBUTION, package_findings, version_of
from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.java import HOW_TO_GET_JAVA
from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.options import ClientOptions
from pyspark_kafka_meta.telemetry.event_origin import task_origin
from pyspark_kafka_meta.wire.sockets import within

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_TIMEOUT_S = 300
TASKS_PER_SLOT = 2
"""So that no executor is left out because another one was faster."""
MAX_TASKS = 400

Row = tuple[str, str, str, str]
"""The fields of a finding: what can be sent from where this package may be missing."""

_PYTHON_FIX = (
    f"set PYSPARK_PYTHON to the path of a Python {sys.version_info[0]}.{sys.version_info[1]} on the executors that has "
    f"{DISTRIBUTION}"
)
_SIGNS = {
    "JAVA_GATEWAY_EXITED": HOW_TO_GET_JAVA,
    "PYTHON_VERSION_MISMATCH": _PYTHON_FIX,
    "Cannot run program": _PYTHON_FIX,
    "Connection reset": _PYTHON_FIX,
    "Python worker": _PYTHON_FIX,
}
"""What Spark's errors contain, the most specific first."""


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """A session that waits for its executors, and ends."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("kafkameta doctor").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF")
    spark = builder.config("spark.scheduler.minRegisteredResourcesRatio", "1.0").getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def executor_findings(cluster: Mapping[str, str], addresses: Sequence[Address]) -> list[Finding]:
    """What the executors see.

    Args:
        cluster: the `kafka.*` options.
        addresses: of the brokers.
    """
    try:
        return within(time.monotonic() + SPARK_TIMEOUT_S, lambda: _run(cluster, addresses))
    except TimeoutError:
        fix = "look whether the cluster manager has room for an application, and at its log"
        return [fail("spark", f"no answer from the executors in {SPARK_TIMEOUT_S} s", fix)]
    except Exception as error:  # Spark's, py4j's and those of a Java that does not start
        return [judge_spark_error(str(error))]


def judge_spark_error(text: str) -> Finding:
    """What one of Spark's own errors means: its most specific line, and what to do."""
    lines = [line.strip(" :") for line in text.splitlines() if line.strip()]
    for sign, fix in _SIGNS.items():
        if told := next((line for line in lines if sign in line), None):
            return fail("spark", told[:500], fix)
    fix = "run any small pyspark job there: this one failed before it looked at anything"
    return fail("spark", lines[0][:500] if lines else "the job failed", fix)


def worst_of_each(rows: Iterable[Row]) -> list[Finding]:
    """One finding for each check of each executor, of what its tasks sent; in order."""
    severity = list(Verdict)
    found = sorted((Finding(check, Verdict(verdict), what, fix) for check, verdict, what, fix in rows), key=_by_check)
    return [max(group, key=lambda one: severity.index(one.verdict)) for _, group in groupby(found, key=_by_check)]


def look_around(release: str | None, cluster: Mapping[str, str], addresses: Sequence[tuple[str, int]]) -> list[Row]:
    """What a task sees where it runs. `release` is that of this package on the driver."""
    origin = task_origin()
    who = f"executor {origin.executor_id or 'of unknown id'} on {origin.host}"
    found = [replace(one, check=f"{who}: {one.check}") for one in package_findings() if one.verdict is Verdict.FAIL]
    if not found:
        found.append(ok(who, f"Python {sys.version.split()[0]} at {sys.executable} has all packages"))
    if (own := version_of(DISTRIBUTION)) != release:
        fix = f"install release {release} of {DISTRIBUTION} on the executors"
        found.append(warn(f"{who}: release", f"{DISTRIBUTION} is {own}, and {release} on the driver", fix))
    found += _ways(who, cluster, [Address(host, port) for host, port in addresses]) if addresses else []
    return [(one.check, str(one.verdict), one.what, one.fix) for one in found]


def _ways(who: str, cluster: Mapping[str, str], addresses: Sequence[Address]) -> list[Finding]:
    try:
        options = ClientOptions.parse(cluster)
    except OptionError as error:  # good on the driver: a file or an extra is missing here
        return [failure(f"{who}: options", error)]
    reaches = reach_all(addresses, options)
    lost = [failure(f"{who}: {one}", error) for one, error in reaches.items() if not isinstance(error, Reached)]
    return lost or [ok(f"{who}: brokers", f"all {len(addresses)} can be reached")]


def _run(cluster: Mapping[str, str], addresses: Sequence[Address]) -> list[Finding]:
    release, given, wanted = version_of(DISTRIBUTION), dict(cluster), [(one.host, one.port) for one in addresses]

    # Nested, so that it is sent whole: an executor that lacks this package could not load it by name.
    def look(_: int) -> list[Row]:
        import socket
        import sys

        try:
            from pyspark_kafka_meta.doctor.executor_checks import look_around

            return look_around(release, given, wanted)
        except Exception as error:
            what = f"{sys.executable} does not have pyspark_kafka_meta as the driver does ({error})"
            fix = "pip install the driver's release of pyspark-kafka-meta into it, or name another in PYSPARK_PYTHON"
            return [(f"executor on {socket.gethostname()}", "fail", what, fix)]

    with spark_session() as spark:
        context = spark.sparkContext
        tasks = min(context.defaultParallelism * TASKS_PER_SLOT, MAX_TASKS)
        rows = context.parallelize(range(tasks), tasks).flatMap(look).collect()
        about_spark = ok("spark", f"{spark.version}, master {context.master}")
        return [about_spark, *worst_of_each(rows)]


def _by_check(one: Finding) -> str:
    return one.check

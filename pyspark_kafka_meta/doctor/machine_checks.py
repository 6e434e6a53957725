"""This machine: Python, the one that Spark's workers get, Java, and the packages that `setup.cfg` asks for.

Imports nothing but the standard library until it is known whether the rest can be imported.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module, metadata
from itertools import zip_longest
from typing import NamedTuple

from pyspark_kafka_meta.doctor.findings import Finding, Verdict, fail, ok, warn

DISTRIBUTION = "pyspark-kafka-meta"
STREAMS_SINCE = (4, 2)
"""The release of pyspark in which a source learns where a micro-batch begins."""

_COMMAND_TIMEOUT_S = 30
_OF_A_WORKER = ("pyspark_kafka_meta", "pyarrow", "numpy", "kio", "cramjam", "crc32c")
_ASK_PYTHON = (
    "import importlib.util, json, sys; "
    f"missing = [one for one in {_OF_A_WORKER} if importlib.util.find_spec(one) is None]; "
    "print(json.dumps([sys.version_info[:2], missing]))"
)


class Requirement(NamedTuple):
    """A distribution and its bounds, as `>=4.0,<5`."""

    name: str
    bounds: str


class Installed(NamedTuple):
    """One package, as it is installed.

    Attributes:
        version: None if it is not known.
        trouble: why it cannot be imported, empty if it can.
    """

    version: str | None
    trouble: str


def machine_findings() -> Iterator[Finding]:
    """All of them; Java is looked for only if the packages are there that this takes."""
    yield ok("python", f"{sys.version.split()[0]} at {sys.executable}")
    packages = list(package_findings())
    yield from packages
    yield from driver_python_findings(os.environ)
    yield _worker_python()
    if not any(one.verdict is Verdict.FAIL for one in packages):
        yield _java()


def package_findings() -> Iterator[Finding]:
    """Whether what this package needs is there, in the releases it needs, and can be imported."""
    try:
        required = requirements(metadata.requires(DISTRIBUTION) or ())
    except metadata.PackageNotFoundError:
        yield warn(
            "packages", f"{DISTRIBUTION} was not installed by pip", f"pip install . in a clone of {DISTRIBUTION}"
        )
        required = [Requirement("pyspark", ""), Requirement("pyarrow", ""), Requirement("kio", "")]
    installed = {one.name: _installed(one.name) for one in required}
    problems = [found for one in required if (found := judge_package(one, installed[one.name])) is not None]
    if not problems:
        versions = {DISTRIBUTION: version_of(DISTRIBUTION), **{name: one.version for name, one in installed.items()}}
        yield ok("packages", ", ".join(f"{name} {version or '?'}" for name, version in versions.items()))
    yield from problems
    if (version := installed["pyspark"].version) is not None:
        yield judge_pyspark(version)


def version_of(distribution: str) -> str | None:
    """As pip knows it, if it does."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def requirements(texts: Sequence[str]) -> list[Requirement]:
    """Those that go without an extra, of texts as `pyarrow>=18` and `gssapi<2,>=1.9; extra == "kerberos"`."""
    plain = [text.partition(";")[0].replace(" ", "") for text in texts if "extra" not in text.partition(";")[2]]
    matches = [re.match(r"([\w.-]+)\(?([^)]*)", text) for text in plain]
    return [Requirement(match[1], match[2]) for match in matches if match is not None]


def judge_package(required: Requirement, installed: Installed) -> Finding | None:
    """None if nothing is wrong with it."""
    check, wanted = f"package {required.name}", f"{required.name}{required.bounds}"
    fix = f"pip install '{wanted}' into this Python: {sys.executable}"
    if installed.trouble:
        return fail(check, f"it cannot be imported ({installed.trouble})", fix)
    if installed.version is not None and not is_within(installed.version, required.bounds):
        return fail(check, f"it is {installed.version}, and {wanted} is needed", fix)
    return None


def judge_pyspark(version: str) -> Finding:
    """What this release can do."""
    if _numbers(version)[:2] < STREAMS_SINCE:
        return warn("pyspark", f"{version} reads batches, not streams", "upgrade to pyspark 4.2 or later for streams")
    return ok("pyspark", f"{version} reads batches and streams")


def is_within(version: str, bounds: str) -> bool:
    """Whether it meets bounds that are made of `>=` and `<`, the only ones in `setup.cfg`."""
    at_least, below = re.findall(r">=([\d.]+)", bounds), re.findall(r"<([\d.]+)", bounds)
    return all(_compare(version, one) >= 0 for one in at_least) and all(_compare(version, one) < 0 for one in below)


def judge_worker_python(command: str, is_set: bool, told: str | None, own: tuple[int, int]) -> Finding:
    """The Python that Spark starts on this machine.

    Args:
        command: what Spark starts.
        is_set: whether PYSPARK_PYTHON says so.
        told: what it printed for `_ASK_PYTHON`, None if it did not run.
        own: version of the driver's Python.
    """
    check = "PYSPARK_PYTHON"
    there = f"a Python {own[0]}.{own[1]} with these packages"
    fix = f"export PYSPARK_PYTHON={sys.executable}; executors on other machines need {there} at that path"
    start = f"is {command}" if is_set else f"is not set, so that Spark starts {command}"
    if told is None:
        return fail(check, f"{start}, which does not run", fix)
    (major, minor), missing = json.loads(told)
    if (major, minor) != own:
        return fail(check, f"{start}, which is Python {major}.{minor}; the driver's is {own[0]}.{own[1]}", fix)
    if missing:
        return fail(check, f"{start}, which lacks {', '.join(missing)}", fix)
    return ok(check, f"{start}: Python {major}.{minor} with the packages")


def driver_python_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """PYSPARK_DRIVER_PYTHON, which Spark starts on executors too, for a source that it finds by itself."""
    driver, workers = environment.get("PYSPARK_DRIVER_PYTHON"), environment.get("PYSPARK_PYTHON")
    if driver and driver != workers:
        yield warn(
            "PYSPARK_DRIVER_PYTHON",
            f"is {driver}, which Spark starts on the executors too, in place of PYSPARK_PYTHON, for a source that it "
            "finds by itself",
            "unset it, or call spark.dataSource.register(KafkaMetaDataSource) in the program",
        )


def _worker_python() -> Finding:
    given = os.environ.get("PYSPARK_PYTHON")
    command = given or "python3"  # as pyspark's SparkContext does
    found = shutil.which(command)
    told = None if found is None else _output([found, "-c", _ASK_PYTHON])
    return judge_worker_python(command if given else found or command, given is not None, told, sys.version_info[:2])


def _java() -> Finding:
    from pyspark_kafka_meta.errors import ClusterError
    from pyspark_kafka_meta.java import find_java

    try:
        return ok("java", str(find_java()))
    except ClusterError as error:
        what, _, fix = str(error).rstrip(".").partition(": ")
        return fail("java", what, fix)


def _output(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _installed(name: str) -> Installed:
    try:
        module = import_module(name.replace("-", "_"))
    except Exception as error:  # a library that is missing, or built for another one, raises what it likes
        return Installed(None, f"{type(error).__name__}: {error}")
    # Spark's own python folder, say, is no distribution.
    return Installed(version_of(name) or getattr(module, "__version__", None), "")


def _compare(one: str, other: str) -> int:
    """Below, at or above 0."""
    pairs = zip_longest(_numbers(one), _numbers(other), fillvalue=0)
    return next((mine - its for mine, its in pairs if mine != its), 0)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))

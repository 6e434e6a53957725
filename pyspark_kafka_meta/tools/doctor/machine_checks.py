"""Check this machine: Python, the Python of Spark's workers, Java, and the packages that `setup.cfg` requires.

Imports only the standard library until the other packages are checked.
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
from pathlib import Path
from sysconfig import get_config_var
from typing import NamedTuple

from pyspark_kafka_meta.tools.doctor import Finding, Verdict, fail, ok, warn

DISTRIBUTION = "pyspark-kafka-meta"
SPARK = "pyspark"
_OF_SPARK = re.compile(r"""extra == ["']spark["']""")
"""In a requirement. Releases of setuptools differ in their quotes."""

_COMMAND_TIMEOUT_S = 30
_WORKER_PACKAGES = ("pyspark_kafka_meta", "pyarrow", "numpy", "kio", "cramjam", "crc32c")
_PYTHON_REPORT = (
    "import importlib.util, json, sys; "
    f"missing = [name for name in {_WORKER_PACKAGES} if importlib.util.find_spec(name) is None]; "
    "print(json.dumps([sys.version_info[:2], missing]))"
)


class Requirement(NamedTuple):
    """A distribution and its version bounds, such as `>=4.0,<5`."""

    name: str
    bounds: str


class Installed(NamedTuple):
    """A package; `import_error` is empty if it can be imported."""

    version: str | None
    import_error: str
    is_missing: bool = False


def machine_findings() -> Iterator[Finding]:
    """All findings on this machine. The check of Java needs the packages, and only queries need Java and a Python of
    Spark's."""
    yield judge_python(f"{sys.version.split()[0]} at {sys.executable}", bool(get_config_var("Py_GIL_DISABLED")))
    packages = list(package_findings())
    yield from packages
    if _installed(SPARK).is_missing:
        return
    yield from driver_python_findings(os.environ)
    yield _worker_python()
    if not any(finding.verdict is Verdict.FAIL for finding in packages):
        yield _java()


def judge_python(python: str, is_free_threaded: bool) -> Finding:
    """The driver's Python, as a release and a path."""
    if is_free_threaded:
        return warn("python", f"{python} is free-threaded, which is not supported", "use a Python with the GIL")
    return ok("python", python)


def package_findings() -> Iterator[Finding]:
    """Whether the required packages are installed in a supported release and can be imported."""
    try:
        required = requirements(metadata.requires(DISTRIBUTION) or ())
    except metadata.PackageNotFoundError:
        yield warn("packages", f"{DISTRIBUTION} was not installed by pip", f"pip install {DISTRIBUTION}")
        required = [Requirement("pyspark", ""), Requirement("pyarrow", ""), Requirement("kio", "")]
    installed = [_installed(package.name) for package in required]
    problems = [found for found in map(judge_package, required, installed) if found is not None]
    if not problems:
        versions = [(DISTRIBUTION, version_of(DISTRIBUTION))]
        versions += [(package.name, found.version) for package, found in zip(required, installed, strict=True)]
        yield ok("packages", ", ".join(f"{name} {version or '?'}" for name, version in versions))
    yield from problems


def version_of(distribution: str) -> str | None:
    """The version that pip installed; None without pip."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def requirements(texts: Sequence[str]) -> list[Requirement]:
    """The requirements without an extra, and of the extra `spark`, from texts such as
    `gssapi<2,>=1.9; extra == "kerberos"`."""
    markers = [(text.partition(";")[0].replace(" ", ""), text.partition(";")[2]) for text in texts]
    plain = [required for required, marker in markers if "extra" not in marker or _OF_SPARK.search(marker)]
    matches = [re.match(r"([\w.-]+)\(?([^)]*)", text) for text in plain]
    return [Requirement(match[1], match[2]) for match in matches if match is not None]


def judge_package(required: Requirement, installed: Installed) -> Finding | None:
    """None for a usable package. Without pyspark the checks of brokers and topics work."""
    check, wanted = f"package {required.name}", f"{required.name}{required.bounds}"
    fix = f"pip install '{wanted}' into this Python: {sys.executable}"
    if required.name == SPARK and installed.is_missing:
        return warn(check, "is missing, so that this Python runs no query", fix)
    if installed.import_error:
        return fail(check, f"it cannot be imported ({installed.import_error})", fix)
    if installed.version is not None and not is_within(installed.version, required.bounds):
        return fail(check, f"its version is {installed.version}, required is {wanted}", fix)
    return None


def is_within(version: str, bounds: str) -> bool:
    """Whether the version is within bounds of `>=` and `<`; `setup.cfg` has no others. Not by `packaging`, which no
    requirement installs: this check must run where packages are missing."""
    at_least, below = re.findall(r">=([\d.]+)", bounds), re.findall(r"<([\d.]+)", bounds)
    numbers = _numbers(version)
    return all(numbers >= _numbers(bound) for bound in at_least) and all(numbers < _numbers(bound) for bound in below)


def judge_worker_python(
    command: str, is_set: bool, report: str | None, own: tuple[int, int], faster: Path | None = None
) -> Finding:
    """The Python that Spark starts on this machine.

    Args:
        command: the path that Spark starts.
        is_set: whether PYSPARK_PYTHON is set.
        report: output of `_PYTHON_REPORT`, None if it did not run.
        own: version of the driver's Python.
        faster: a command that starts the same Python faster.
    """
    check = "PYSPARK_PYTHON"
    there = f"a Python {own[0]}.{own[1]} with these packages"
    fix = f"export PYSPARK_PYTHON={sys.executable}; executors on other machines need {there} at that path"
    start = f"is {command}" if is_set else f"is not set, so that Spark starts {command}"
    if report is None:
        return fail(check, f"{start}, which does not run", fix)
    (major, minor), missing = json.loads(report)
    if (major, minor) != own:
        return fail(check, f"{start}, which is Python {major}.{minor}; the driver's is {own[0]}.{own[1]}", fix)
    if missing:
        return fail(check, f"{start}, which lacks {', '.join(missing)}", fix)
    proposal = f"; PYSPARK_PYTHON={faster} starts it faster" if faster else ""
    return ok(check, f"{start}: Python {major}.{minor} with the packages{proposal}")


def driver_python_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Spark starts PYSPARK_DRIVER_PYTHON on executors too, for a source that the program does not register."""
    driver, workers = environment.get("PYSPARK_DRIVER_PYTHON"), environment.get("PYSPARK_PYTHON")
    if driver and driver != workers:
        yield warn(
            "PYSPARK_DRIVER_PYTHON",
            f"is {driver}, which Spark starts on the executors too, instead of PYSPARK_PYTHON, for a source that "
            "the program does not register",
            "unset it, or call spark.dataSource.register(KafkaMetaDataSource) in the program",
        )


def _worker_python() -> Finding:
    given = os.environ.get("PYSPARK_PYTHON")
    command = given or "python3"  # as pyspark's SparkContext does
    found = shutil.which(command)
    report = None if found is None else _output([found, "-c", _PYTHON_REPORT])
    started = command if given else found or command
    faster = None if found is None or report is None else _faster(Path(found), report)
    return judge_worker_python(started, given is not None, report, sys.version_info[:2], faster)


def _faster(python: Path, report: str) -> Path | None:
    """The command of this package beside the Python, unless it is that command, or starts another Python."""
    beside = python.with_name("kafkameta-python")
    is_another = beside != python and beside.exists()
    return beside if is_another and _output([str(beside), "-c", _PYTHON_REPORT]) == report else None


def _java() -> Finding:
    from pyspark_kafka_meta.errors import ClusterError
    from pyspark_kafka_meta.java_launcher import find_java

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
    except Exception as error:  # an incompatible library may raise any error
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
        return Installed(None, f"{type(error).__name__}: {error}", is_missing)
    # A package without pip, such as Spark's own python folder, has no distribution.
    return Installed(version_of(name) or getattr(module, "__version__", None), "")


def _numbers(version: str) -> tuple[int, ...]:
    """Without zeros at the end, which make no difference."""
    return tuple(map(int, re.findall(r"\d+", re.sub(r"(\.0+)+$", "", version.partition("+")[0]))))

"""Downloads jars from Maven Central once, with the resolver of `spark-submit --packages`.

The resolver is Apache Ivy, whose jar pip's pyspark contains; it needs neither Spark nor Maven. Ivy verifies the
checksum of each jar. Follows `org.apache.ivy.Main` and Spark's `MavenUtils`.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from pyspark_kafka_meta.errors import ClusterError
from pyspark_kafka_meta.java_launcher import find_java

RESOLVE_TIMEOUT_S = 600.0
POLL_S = 0.2
ARCHIVE = "tar.gz"


def cache_dir() -> Path:
    """The user's cache folder for this package; the environment variable KAFKAMETA_CACHE_DIR overrides it."""
    chosen = os.environ.get("KAFKAMETA_CACHE_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "kafkameta"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafkameta"


def resolve_jars(coordinates: Sequence[str], transitive: bool = True) -> list[Path]:
    """The jars of `coordinates` ("group:artifact:version"), with their dependencies if `transitive`. Downloads missing
    jars, and says so on stderr.

    Safe to call from several processes at once: one process downloads, the others wait. Raises ClusterError: a jar
    cannot be downloaded.
    """
    return sorted(_resolved(coordinates, transitive).glob("*.jar"))


def resolve_archive(coordinate: str) -> Path:
    """The folder with the content of an archive, "group:artifact:tar.gz:classifier:version". Otherwise as
    `resolve_jars`."""
    return _resolved([coordinate], transitive=False)


def _resolved(coordinates: Sequence[str], transitive: bool) -> Path:
    target = jar_folder(coordinates, transitive)
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.with_name(f"{target.name}.lock").open("w") as lock:
            _lock(lock)
            if not target.is_dir():
                _download(coordinates, ivy_module(coordinates, transitive), target)
    return target


def jar_folder(coordinates: Sequence[str], transitive: bool = True) -> Path:
    """The cache folder of the jars of `coordinates`."""
    module = ivy_module(coordinates, transitive)
    digest = hashlib.sha256(module.encode()).hexdigest()[:8]
    _, artifact, *_, version = coordinates[0].split(":")
    return cache_dir() / "jars" / f"{artifact}-{version}-{digest}"


def _lock(lock: IO[str]) -> None:
    """Wait while another process downloads. Raises ClusterError: it takes too long."""
    deadline = time.monotonic() + RESOLVE_TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(POLL_S)
    raise ClusterError(f"Another process has held {lock.name} for too long: end it and try again.")


def _download(coordinates: Sequence[str], module: str, target: Path) -> None:
    """Download to a temporary folder and rename it to `target`, so that `target` is complete."""
    started_at = time.monotonic()
    sys.stderr.write(f"Downloading {coordinates[0]} once, to {target}\n")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="resolving-") as name:
        scratch = Path(name)
        (scratch / "ivy.xml").write_text(module)
        command = [str(find_java()), "-cp", str(_ivy_jar()), "org.apache.ivy.Main", "-cache", f"{scratch}/cache"]
        command += ["-ivy", f"{scratch}/ivy.xml", "-confs", "default", "-types", "jar", "bundle", ARCHIVE]
        command += ["-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]"]
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ClusterError(
                f"Downloading {coordinates[0]} took over {RESOLVE_TIMEOUT_S:.0f} s: try again."
            ) from error
        if process.returncode != 0:
            output = (process.stdout + process.stderr)[-2000:]
            raise ClusterError(
                f"Cannot download {', '.join(coordinates)}: check the connection to Maven Central, or copy the cache "
                f"of another machine and set KAFKAMETA_CACHE_DIR to it. Output of Ivy:\n{output}"
            )
        for archive in (scratch / "jars").glob(f"*.{ARCHIVE}"):
            shutil.unpack_archive(archive, scratch / "jars", filter="data")
            archive.unlink()
        (scratch / "jars").rename(target)
    sys.stderr.write(f"Downloaded {coordinates[0]} in {time.monotonic() - started_at:.0f} s\n")


def ivy_module(coordinates: Sequence[str], transitive: bool = True) -> str:
    """The text of an ivy.xml that depends on `coordinates` alone."""
    scope = "default" if transitive else "master"  # with and without dependencies
    dependencies = "".join(_dependency(coordinate, scope) for coordinate in coordinates)
    info = '<info organisation="kafkameta" module="testing"/>'
    return f'<ivy-module version="2.0">{info}<dependencies>{dependencies}</dependencies></ivy-module>'


def _dependency(coordinate: str, scope: str) -> str:
    group, artifact, *kind, version = coordinate.split(":")
    attributes = f'org="{group}" name="{artifact}" rev="{version}" conf="default->{scope}"'
    if not kind:
        return f"<dependency {attributes}/>"
    extension, classifier = kind
    part = f'name="{artifact}" type="{extension}" ext="{extension}" m:classifier="{classifier}"'
    return f'<dependency {attributes}><artifact xmlns:m="http://ant.apache.org/ivy/maven" {part}/></dependency>'


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    homes = list(spec.submodule_search_locations or ()) if spec else []
    jars = [jar for home in homes for jar in Path(home, "jars").glob("ivy-*.jar")]
    if not jars:
        raise ClusterError("pyspark's jars folder holds no ivy-*.jar: pip install pyspark (not pyspark-client).")
    return jars[0]

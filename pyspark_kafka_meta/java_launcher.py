"""Find the Java launcher of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from pyspark_kafka_meta.errors import ClusterError

MIN_JAVA_VERSION = 17
USUAL_HOMES = ("usr/lib/jvm/*", "Library/Java/JavaVirtualMachines/*/Contents/Home")
HOW_TO_GET_JAVA = f"install Java {MIN_JAVA_VERSION} or later and put it on PATH, or set JAVA_HOME"


def find_java() -> Path:
    """The Java launcher: `$JAVA_HOME/bin/java`, else `java` on PATH. Raises ClusterError: there is no Java, or it is
    older than Java 17."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found is None:
        raise ClusterError(f"No Java found: {HOW_TO_GET_JAVA}.")
    version = _version_of(found)
    if version is None:
        raise ClusterError(f"{found} does not run: {HOW_TO_GET_JAVA}.")
    if version < MIN_JAVA_VERSION:
        raise ClusterError(f"{found} is Java {version}: {HOW_TO_GET_JAVA}.")
    return Path(found)


def find_java_since(version: int) -> Path:
    """The launcher of a Java of this release or later: that of JAVA_HOME, PATH, or a usual folder, in this order.
    Raises ClusterError: there is none."""
    homes = [Path(os.environ["JAVA_HOME"])] if "JAVA_HOME" in os.environ else []
    on_path = shutil.which("java")
    installed = [home for pattern in USUAL_HOMES for home in sorted(Path("/").glob(pattern))]
    launchers = [str(home / "bin" / "java") for home in homes] + ([on_path] if on_path else [])
    for launcher in dict.fromkeys([*launchers, *(str(home / "bin" / "java") for home in installed)]):
        if (_version_of(launcher) or 0) >= version:
            return Path(launcher)
    raise ClusterError(
        f"No Java {version} or later found: install one below /usr/lib/jvm or on PATH, or set JAVA_HOME to it."
    )


def _version_of(launcher: str) -> int | None:
    """The feature release of a Java launcher; None if it does not run."""
    try:
        output = subprocess.run([launcher, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    return java_version(output)


def java_version(output: str) -> int:
    """The feature release in the output of `java -version`: 17 for "17.0.15", 1 for "1.8.0_402", 0 if there is none."""
    match = re.search(r'version "(\d+)', output)
    return int(match[1]) if match else 0

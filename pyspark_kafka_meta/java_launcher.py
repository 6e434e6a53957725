"""Find the Java launcher of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from pyspark_kafka_meta.errors import ClusterError

MIN_JAVA_VERSION = 17
HOW_TO_GET_JAVA = f"install Java {MIN_JAVA_VERSION} or later and put it on PATH, or set JAVA_HOME"


def find_java() -> Path:
    """The Java launcher: `$JAVA_HOME/bin/java`, else `java` on PATH.

    Raises:
        ClusterError: there is no Java, or it is older than Java 17.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found is None:
        raise ClusterError(f"No Java found: {HOW_TO_GET_JAVA}.")
    try:
        output = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise ClusterError(f"{found} does not run: {HOW_TO_GET_JAVA}.") from error
    version = java_version(output)
    if version < MIN_JAVA_VERSION:
        raise ClusterError(f"{found} is Java {version}: {HOW_TO_GET_JAVA}.")
    return Path(found)


def java_version(output: str) -> int:
    """The feature release in the output of `java -version`: 17 for "17.0.15", 1 for "1.8.0_402", 0 if there is none."""
    match = re.search(r'version "(\d+)', output)
    return int(match[1]) if match else 0

"""Runs the tests of several hosts as root on Linux, in namespaces of their own: `make cluster-test`.

    python -m tests.cluster.run [arguments of pytest]

Every process ends with pytest, however it ends, and with them interfaces and mounts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark_kafka_meta.tools.console import handle_signals

TESTS = Path(__file__).parent / "several_hosts.py"
NAMESPACES = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--net",
    "--mount",
    "--uts",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
]
PROBE = "ip link add probe type bridge && ip link add type veth && ip tuntap add mode tap && nsenter --version"


def reason_to_skip() -> str | None:
    """Why this machine cannot have hosts of its own, None if it can."""
    try:
        probe = subprocess.run([*NAMESPACES, "sh", "-c", PROBE], capture_output=True, text=True)
    except FileNotFoundError:
        return "setpriv or unshare is missing, programs of Linux"
    return (probe.stderr.strip() or "ip or nsenter failed") if probe.returncode else None


def main(arguments: list[str]) -> int:
    if reason := reason_to_skip():
        print(f"skipped: several hosts on one machine need root and Linux ({reason})")  # noqa: T201
        return 0
    handle_signals()
    with tempfile.TemporaryDirectory(prefix="kafkameta-hosts-", ignore_cleanup_errors=True) as folder:
        pytest = [sys.executable, "-m", "pytest", f"--basetemp={folder}/pytest", str(TESTS), *arguments]
        return subprocess.run([*NAMESPACES, *pytest]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

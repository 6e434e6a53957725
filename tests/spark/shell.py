"""Runs the examples as a user does: by Python, in one process (`programs.py`), or by spark-submit or pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.spark.programs import END

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
PROGRAMS = Path(sys.executable).parent
TIMEOUT_S = 200


class User:
    """A user's shell: an environment with the package and small defaults for Spark."""

    def __init__(self, home: Path) -> None:
        self.home = home
        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
        }
        self.environment = {
            **os.environ,
            "MASTER": "local[2]",
            "MPLBACKEND": "Agg",
            "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # No SPARK_CONF_DIR: Java takes an archive of classes only for the class path that it was made with.
            "SPARK_SUBMIT_OPTS": " ".join(f"-D{name}={value}" for name, value in settings.items()),
            "TMPDIR": str(home),
        }
        self._log = (home / "stderr").open("w+")
        self._programs = self.start(
            sys.executable, Path(__file__).with_name("programs.py"), stdin=subprocess.PIPE, stderr=self._log
        )

    def start(self, *command: str | Path, **pipes: Any) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **pipes}
        return subprocess.Popen(list(map(str, command)), env=self.environment, cwd=self.home, **pipes)

    def run_alone(self, name: str, *arguments: str | Path) -> str:
        """The output of an installed program in a process of its own. Fails unless its exit code is 0."""
        process = self.start(PROGRAMS / name, *arguments)
        try:
            out, errors = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
        assert process.returncode == 0, (out + errors)[-4000:]
        return out

    def run(self, program: str | Path, *options: str | Path) -> str:
        """The output of a Python program. Fails unless its exit code is 0."""
        return "".join(self.lines(program, *options))

    def lines(self, program: str | Path, *options: str | Path) -> Iterator[str]:
        """Output lines of a Python program; a name without a folder is an example. Fails unless its exit code is 0."""
        assert self._programs.stdin is not None and self._programs.stdout is not None
        errors_from = self._log.seek(0, os.SEEK_END)
        self._programs.stdin.write(json.dumps([str(EXAMPLES / program), *map(str, options)]) + "\n")
        self._programs.stdin.flush()
        line = ""
        for line in self._programs.stdout:
            if line.startswith(END):
                break
            yield line
        self._log.seek(errors_from)
        assert line == f"{END}0\n", self._log.read()[-4000:]

    def close(self) -> None:
        try:
            self._programs.communicate(timeout=60)
        finally:
            self._programs.kill()
            self._log.close()

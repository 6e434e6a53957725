"""Runs Python programs one after another in one process, so that their Spark sessions share a JVM.

Tests of examples start it as `python programs.py`. Each line of standard input is a JSON list of a program's path and
its arguments. After the output of each program comes a line of `END` and its exit code.
"""

from __future__ import annotations

import json
import runpy
import sys
import traceback

END = "\x04"


def run(path: str) -> object:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as error:
        return error.code or 0
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    for line in sys.stdin:
        sys.argv = json.loads(line)
        code = run(sys.argv[0])
        sys.stdout.write(f"{END}{code}\n")
        sys.stdout.flush()

"""The wheel in new environments, on each Python at hand, with the highest and the lowest dependencies: `make dist`.

    python tests/compat/installed.py WHEEL PYTHON_VERSION...

pip chooses the highest dependencies, as for a user. It cannot choose the lowest: uv does. `tests/compat/smoke.py` and
`kafkameta demo` run in a folder without the checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from importlib.metadata import PathDistribution
from pathlib import Path

UV = str(Path(sys.executable).with_name("uv"))
# The lowest release with a wheel for this Python: no compilers are needed. pyspark has no wheels.
WHEELS = ("--only-binary", ":all:", "--no-binary", "pyspark")
LOWEST = (UV, "pip", "install", "--quiet", "--python", "bin/python", *WHEELS, "--resolution", "lowest-direct")
EXTRAS = ("spark", "cli", "testing")
"""What the smoke test and the demo need."""
INSTALLERS = {"highest": ("bin/python", "-m", "pip", "install", "--quiet"), "lowest": LOWEST}
"""Commands that install the wheel, by the dependencies that they choose."""
SMOKE = Path(__file__).with_name("smoke.py")
INSTALLED = """
from importlib.metadata import version
import pyspark_kafka_meta
print(pyspark_kafka_meta.__file__, *map(version, ("pyspark", "pyarrow", "numpy")))
"""
ONE_SCENE = "\nq\n"
"""Answers to the demo."""
SCENE_SEEN = re.compile(r"^ *1 +Ask one broker, learn them all +\d+\.\d s", re.MULTILINE)
TIMEOUT_S = 900


def main(wheel: Path, *pythons: str) -> None:
    packages = [f"{wheel.resolve()}[{','.join(EXTRAS)}]", *requirements(wheel)]
    print("python | dependencies | pyspark pyarrow numpy | install | first rows | smoke test | demo")  # noqa: T201
    found = {version: python for version in pythons if (python := find_python(version)) is not None}
    if not found:
        raise SystemExit(f"none of Python {', '.join(pythons)} is on the PATH: nothing was tried")
    for version in pythons:
        if version not in found:
            print(f"{version} | not on the PATH: not tried")  # noqa: T201
    for version, python in found.items():
        for dependencies, installer in INSTALLERS.items():
            with tempfile.TemporaryDirectory(prefix="kafkameta-dist-", ignore_cleanup_errors=True) as folder:
                seen = try_out(Path(folder), python, (*installer, *packages))
            print(" | ".join((version, dependencies, *seen)), flush=True)  # noqa: T201


def requirements(wheel: Path) -> list[str]:
    """The requirements of the wheel, with `EXTRAS`. uv chooses the lowest release of those that the command names."""
    (info,) = [folder for folder in zipfile.Path(wheel).iterdir() if folder.name.endswith(".dist-info")]
    extras = [f'extra == "{extra}"' for extra in EXTRAS]
    given = [text.partition(";") for text in PathDistribution(info).requires or ()]
    return [
        required for required, _, marker in given if "extra" not in marker or any(each in marker for each in extras)
    ]


def find_python(version: str) -> str | None:
    """The path of a Python of this version on the PATH; None if there is none."""
    found = subprocess.run([UV, "python", "find", "--no-python-downloads", version], capture_output=True, text=True)
    return found.stdout.strip() or None


def try_out(folder: Path, python: str, installer: Sequence[str]) -> tuple[str, ...]:
    """Install the wheel in a new environment and use it; returns the columns of the table."""
    run(folder, python, "-m", "venv", ".")
    started = time.monotonic()
    run(folder, *installer)
    install_s = time.monotonic() - started
    file, *versions = run(folder, "bin/python", "-c", INSTALLED).stdout.split()
    assert Path(file).is_relative_to(folder), f"imported from {file}"

    shutil.copy(SMOKE, folder)
    started = time.monotonic()
    smoke = run(folder, "bin/python", SMOKE.name).stdout
    smoke_s = time.monotonic() - started
    first_rows = re.search(r"first rows after ([\d.]+ s)", smoke)
    assert first_rows is not None, smoke

    started = time.monotonic()
    demo = run(folder, "bin/kafkameta", "demo", "--interactive", answers=ONE_SCENE)
    assert SCENE_SEEN.search(demo.stdout), demo.stdout + demo.stderr
    demo_s = time.monotonic() - started
    seconds = [f"{install_s:.1f} s", first_rows[1], f"{smoke_s:.1f} s", f"{demo_s:.1f} s"]
    return " ".join(versions), *seconds


def run(folder: Path, *command: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in the folder, and without what the environment says of other Pythons."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK_"))}
    variables |= {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(folder)}
    variables |= {"SPARK_LOCAL_IP": "127.0.0.1", "COLUMNS": "140"}
    done = subprocess.run(
        command, input=answers, cwd=folder, env=variables, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

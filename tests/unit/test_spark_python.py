"""Spark's Python processes import its packages from folders, and task workers begin with the imports of a task."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from zipfile import ZipFile

import pyspark
import pytest

from pyspark_kafka_meta.spark_python import leave_archive, may_fork_after_imports

ROOT = Path(__file__).parent.parent.parent
ARCHIVES = sorted(map(str, Path(pyspark.__path__[0], "python", "lib").glob("*.zip")))
TIMEOUT_S = 60


def environment(**more: str) -> dict[str, str]:
    """As Spark sets it for its Python processes."""
    path = os.pathsep.join([*ARCHIVES, str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "PYTHON_WORKER_FACTORY_SECRET": "secret", **more}


@contextmanager
def started_daemon(worker: str, **more: str) -> Iterator[tuple[Path, int]]:
    """The daemon's folder in /proc, and the port where it waits for Spark."""
    command = [sys.executable, "-m", "pyspark_kafka_meta.spark_python", "pyspark.daemon", worker]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment(**more), **pipes) as daemon:  # type: ignore[call-overload]
        try:
            yield Path(f"/proc/{daemon.pid}"), read_int(daemon.stdout)
        finally:
            daemon.stdin.close()  # it ends, as when Spark ends
            daemon.wait(TIMEOUT_S)


def libraries_of_a_worker(port: int) -> str:
    """Of a worker that the daemon forks for a connection."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        return Path(f"/proc/{read_int(connection.makefile('rb'))}/maps").read_text()


def read_int(stream: IO[bytes]) -> int:
    return int.from_bytes(stream.read(4))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(
    ("cores_per_task", "imported"),
    [pytest.param("1", {"libarrow", "kio"}, id="one thread"), pytest.param("2", set(), id="numpy would start threads")],
)
def test_a_worker_begins_with_imports_from_a_daemon_without_threads(cores_per_task: str, imported: set[str]) -> None:
    with started_daemon("pyspark.worker", OMP_NUM_THREADS=cores_per_task) as (daemon, port):
        threads, files = list((daemon / "task").iterdir()), [file.readlink() for file in (daemon / "fd").iterdir()]
        libraries = libraries_of_a_worker(port)

    assert {name for name in ("libarrow", "kio") if name in libraries} == imported
    assert len(threads) == 1
    assert sum(str(file).startswith("socket:") for file in files) == 1  # where it listens


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_worker_for_planning_has_no_imports_of_tasks() -> None:
    with started_daemon("pyspark.sql.worker.plan_data_source_read", OMP_NUM_THREADS="1") as (_, port):
        libraries = libraries_of_a_worker(port)

    assert "libarrow" not in libraries


def test_a_daemon_starts_where_a_library_cannot_be_imported(tmp_path: Path) -> None:
    """For the tasks that need no Kafka."""
    (tmp_path / "pyarrow.py").write_text("raise ValueError('numpy.dtype size changed')")
    path = os.pathsep.join([*ARCHIVES, str(tmp_path), str(ROOT)])
    with started_daemon("pyspark.worker", OMP_NUM_THREADS="1", PYTHONPATH=path) as (_, port):
        assert port > 0


@pytest.mark.parametrize(
    ("platform", "threads", "may_fork"),
    [
        ("linux", {"OMP_NUM_THREADS": "1"}, True),
        ("linux", {}, False),
        ("linux", {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "4"}, False),
        ("linux", {"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "1"}, True),
        ("darwin", {"OMP_NUM_THREADS": "1"}, False),
    ],
)
def test_only_a_process_that_starts_no_threads_imports_before_it_forks(
    monkeypatch: pytest.MonkeyPatch, platform: str, threads: dict[str, str], may_fork: bool
) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, number in threads.items():
        monkeypatch.setenv(name, number)
    monkeypatch.setattr(sys, "platform", platform)

    assert may_fork_after_imports() == may_fork


def test_workers_draw_different_random_numbers() -> None:
    """Also where numpy imports numpy.random."""
    code = """
import os, sys, numpy.random
from pyspark_kafka_meta import spark_python
spark_python.MODULES_OF_TASKS = ()
spark_python.import_for_tasks()
for _ in range(2):
    if os.fork() == 0:
        print(numpy.random.random(), flush=True)
        os._exit(0)
    os.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=200
    )

    assert len(set(done.stdout.split())) == 2, done.stderr


def test_spark_is_imported_from_where_it_is_installed() -> None:
    code = """
from pyspark_kafka_meta.spark_python import ARCHIVES, leave_archive
for package in ARCHIVES:
    leave_archive(package)
import py4j, pyspark
print(pyspark.__file__, py4j.__file__)
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=200)

    assert done.stdout.split()[0] == pyspark.__file__, done.stderr
    assert ".zip" not in done.stdout


@pytest.mark.parametrize(
    ("archived", "installed", "of_spark", "then"),
    [
        pytest.param("4.3.0", "4.3.0", None, ["site"], id="installed"),
        pytest.param("4.3.0", "4.2.0", None, ["archive", "site"], id="another release installed"),
        pytest.param("4.3.0", None, None, ["archive", "site"], id="not installed"),
        pytest.param(None, "4.3.0", None, ["archive", "site"], id="no archive"),
        pytest.param("4.3.0", None, "4.3.0", ["spark", "site"], id="in Spark's folder"),
        pytest.param("4.3.0", "4.2.0", "4.3.0", ["spark", "site"], id="in Spark's folder, another installed"),
    ],
)
def test_an_archive_stays_unless_a_folder_has_the_same_release(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    archived: str | None,
    installed: str | None,
    of_spark: str | None,
    then: list[str],
) -> None:
    spark, site = tmp_path / "python", tmp_path / "site"
    folders = {"archive": spark / "lib" / "pyspark.zip", "spark": spark, "site": site}
    for folder, release in ((tmp_path, archived), (site, installed), (spark, of_spark)):
        if release:
            write_package(folder, release)
    if archived:
        folders["archive"].parent.mkdir(parents=True)
        with ZipFile(folders["archive"], "w") as archive:
            for name in ("pyspark/__init__.py", "pyspark/version.py"):
                archive.write(tmp_path / name, name)
    monkeypatch.setattr(sys, "path", [str(folders["archive"]), str(site)])

    leave_archive("pyspark")

    assert sys.path == [str(folders[name]) for name in then]


def test_an_archive_of_the_users_modules_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path, "4.3.0")
    path = [str(tmp_path / "pyspark_with_jobs.zip"), str(tmp_path)]
    with ZipFile(path[0], "w") as archive:
        for name in ("pyspark/__init__.py", "pyspark/version.py"):
            archive.write(tmp_path / name, name)
        archive.writestr("jobs.py", "")
    monkeypatch.setattr(sys, "path", list(path))

    leave_archive("pyspark")

    assert sys.path == path


def write_package(folder: Path, release: str) -> None:
    (folder / "pyspark").mkdir(parents=True)
    (folder / "pyspark" / "__init__.py").touch()
    (folder / "pyspark" / "version.py").write_text(f"__version__ = {release!r}\n")


@pytest.mark.parametrize("name", ["beside/python", "on-path/python3"])
@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        pytest.param(["-c", "import sys; print(sys.argv)", "a b"], "['-c', 'a b']", id="any program"),
        pytest.param(["-m", "pyspark.version"], "", id="a module of Spark"),
    ],
)
def test_the_command_is_the_python_beside_it_or_on_the_path(
    tmp_path: Path, name: str, arguments: list[str], printed: str
) -> None:
    python = tmp_path / name
    for folder in ("beside", "on-path"):
        (tmp_path / folder).mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    command = tmp_path / "beside" / "kafkameta-python"
    command.symlink_to(ROOT / "bin" / command.name)
    path = os.pathsep.join([str(tmp_path / "on-path"), "/usr/bin", "/bin"])
    done = subprocess.run(
        [str(command), *arguments], env=environment(PATH=path), capture_output=True, text=True, timeout=200
    )

    assert (done.returncode, done.stdout.strip()) == (0, printed), done.stderr

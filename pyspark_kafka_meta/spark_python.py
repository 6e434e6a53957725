"""Starts Spark's Python processes faster. `bin/kafkameta-python`, which users set as PYSPARK_PYTHON, runs it with the
module and the arguments that Spark gives to Python after `-m`.

Spark has its Python processes import pyspark from an archive of sources: each process compiles what it imports, and
Python before 3.13 reads the archive again for each package that was imported from it when Spark changes the path. Here
they import the same release from a folder, with bytecode. The daemon of task workers imports what tasks need before it
forks them.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from runpy import run_module
from zipimport import zipimporter

ARCHIVES = {"pyspark": "pyspark.zip", "py4j": "py4j-*-src.zip"}
"""As Spark names them. An archive of another name may have the user's modules too."""
DAEMON_OF_TASKS = ["pyspark.daemon", "pyspark.worker"]
MODULES_OF_TASKS = (
    "pyspark.worker",
    "pyspark_kafka_meta.source",
    "pyspark_kafka_meta.spark.stream_reader",
    "pyspark_kafka_meta.read.fetching.task_reader",
    "pyspark_kafka_meta.spark.stream_writer",
    "pyspark_kafka_meta.write.task_writer",
    "pyspark_kafka_meta.write.transactional_producer",
    "pyspark_kafka_meta.spark.client_pool",
)


def main() -> None:
    """Run the module as `python -m` does."""
    del sys.argv[0]
    for package in ARCHIVES:
        leave_archive(package)
    if sys.argv == DAEMON_OF_TASKS and may_fork_after_imports():
        import_for_tasks()
    run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def leave_archive(package: str) -> None:
    """Take Spark's archive of the package from the path, if the same release is installed, or in Spark's own folder."""
    for archive in [entry for entry in sys.path if Path(entry).match(ARCHIVES[package])]:
        others, of_spark = [entry for entry in sys.path if entry != archive], str(Path(archive).parent.parent)
        for folders in (others, [of_spark, *others]):
            if _has_release_of(archive, package, folders):
                sys.path[:] = folders
                break


def _has_release_of(archive: str, package: str, folders: list[str]) -> bool:
    found = PathFinder.find_spec(package, folders)
    if found is None or found.origin is None:
        return False
    with suppress(ImportError, OSError):  # no such archive, or something else of that name
        release = zipimporter(archive).get_data(str(Path(package, "version.py")))
        return Path(found.origin).with_name("version.py").read_bytes() == release
    return False


def may_fork_after_imports() -> bool:
    """Whether numpy's OpenBLAS starts no thread when it is imported: a process that forks should have none. Spark sets
    OMP_NUM_THREADS to spark.task.cpus, unless the user sets it. On macOS numpy imports Apple's libraries, which may
    crash in a fork."""
    threads = [os.environ.get(name) for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")]
    return sys.platform == "linux" and next(filter(None, threads), None) == "1"


def import_for_tasks() -> None:
    """Call it before workers are forked. Afterwards the process has one thread, no connection and no open file."""
    # No thread of jemalloc in pyarrow, which a fork would end.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    with suppress(Exception):  # an incompatible library may raise any error; the tasks that need it report it
        for module in MODULES_OF_TASKS:
            import_module(module)
    if "numpy.random" in sys.modules:  # numpy before 2 imports it: workers would draw the same numbers
        os.register_at_fork(after_in_child=sys.modules["numpy.random"].seed)
    gc.freeze()  # collections would copy the memory that workers share


if __name__ == "__main__":
    main()

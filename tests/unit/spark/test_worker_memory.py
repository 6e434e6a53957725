"""Workers with limited memory: a typed error, and fewer reserved addresses."""

from __future__ import annotations

import resource
import subprocess
import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest

from pyspark_kafka_meta.errors import WorkerMemoryError
from pyspark_kafka_meta.spark.worker_memory import worker_memory

THREADS_IN_LIMITED_PROCESS = """
import resource, sys, threading
from pathlib import Path
from pyspark_kafka_meta.spark.worker_memory import worker_memory

def size():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

if sys.argv[1] == "limited":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
with worker_memory("a and b"):
    started, end, sizes = threading.Barrier(5), threading.Barrier(5), size()
    def work():
        text = bytes(100_000).hex()
        started.wait()
        end.wait()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    print((size() - sizes) >> 20)
    end.wait()
"""


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowMemoryError("malloc of size 64 failed")])
def test_missing_memory_is_one_sentence_with_the_setting(error: MemoryError) -> None:
    with (
        pytest.raises(WorkerMemoryError, match=r"left: raise spark\.executor\.pyspark\.memory.* lower a and b$"),
        worker_memory("a and b"),
    ):
        raise error


@pytest.mark.parametrize("loaded", [None, SimpleNamespace(CDLL=lambda _: object())], ids=["no ctypes", "no mallopt"])
def test_limited_worker_runs_where_arenas_cannot_be_limited(loaded: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", loaded)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, 1 << 30))
    with worker_memory("a and b"):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, RLIMIT_AS and glibc")
def test_threads_of_a_limited_worker_share_an_arena(request: pytest.FixtureRequest) -> None:
    def reserved_mib(how: str) -> int:
        command = [sys.executable, "-c", THREADS_IN_LIMITED_PROCESS, how]
        return int(subprocess.check_output(command, cwd=request.config.rootpath, text=True, timeout=200))

    assert reserved_mib("limited") < 64 < 4 * 64 <= reserved_mib("free")

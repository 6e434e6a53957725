"""The memory of Python workers, where spark.executor.pyspark.memory limits their address space (RLIMIT_AS)."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark_kafka_meta.errors import WorkerMemoryError

M_ARENA_MAX = -8
"""Parameter of glibc's `mallopt`."""


@contextmanager
def worker_memory(smaller: str) -> Iterator[None]:
    """Raise a `WorkerMemoryError` for a task that gets no memory, also from Arrow, numpy or Spark's own code.

    Args:
        smaller: options that lower what the task needs.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        _save_addresses()
    try:
        yield
    except MemoryError as error:
        raise WorkerMemoryError(
            "a Python worker has no memory left: raise spark.executor.pyspark.memory, which an executor's cores share, "
            f"or lower {smaller}"
        ) from error


def _save_addresses() -> None:
    """Have all threads allocate in one arena. glibc reserves 64 MiB of addresses for the arena of each thread that
    Arrow or a new connection starts: with these, workers of 512 MiB ran out of addresses."""
    with suppress(ImportError, AttributeError):  # a Python without ctypes, or another C library
        import ctypes

        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)

"""Reports errors of this package to users as one sentence.

Spark's Python processes report an exception with its traceback unless their environment hides tracebacks: see
`pyspark.util.handle_worker_exception`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.spark.task_latency import spark_main_frame

logger = logging.getLogger(__name__)

T = TypeVar("T")

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Spark sets it if spark.sql.execution.pyspark.udf.hideTraceback.enabled is true."""


def entry_points(cls: type[T]) -> type[T]:
    """A decorator for classes that Spark calls: errors of the constructor and public methods are one sentence."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, _entry_point(member))
    return cls


def _entry_point(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with hide_traceback():
            result = method(*args, **kwargs)
        return _rows(result) if isinstance(result, Iterator) else result

    return call


def _rows(rows: Iterator[Any]) -> Iterator[Any]:
    with hide_traceback():
        yield from rows


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Have Spark report a `KafkaMetaError` without its traceback, which is logged at DEBUG. Unexpected exceptions keep
    their tracebacks."""
    try:
        yield
    except KafkaMetaError:
        logger.debug("Reported without this traceback:", exc_info=True)
        if spark_main_frame(sys._getframe()) is not None:  # a Python process of Spark, which ends with this error
            os.environ[HIDE_TRACEBACK] = "1"
        raise

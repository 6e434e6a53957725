"""`--watch`: repeats a look at the cluster."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice
from time import sleep
from typing import TypeVar

from pyspark_kafka_meta.metadata.cache import RETRIABLE_ERRORS
from pyspark_kafka_meta.monitor.console import error_text

T = TypeVar("T")


def repeat(
    look: Callable[[], T],
    show_look: Callable[[T], None],
    report: Callable[[str], None],
    every_s: float,
    times: int | None,
) -> bool:
    """Look until Ctrl-C, or `times` times, and report if no broker responds.

    Returns:
        Whether a broker responded in the last look.

    Raises:
        KafkaMetaError: an error that is not retriable, such as a refused login.
    """
    has_response = False
    for number in islice(count(), times):
        if number > 0:
            sleep(every_s)
        try:
            seen = look()
        except RETRIABLE_ERRORS as error:
            has_response = False
            report(error_text(error))
        else:
            has_response = True
            show_look(seen)
    return has_response

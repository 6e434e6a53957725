"""`--watch`: repeats a look at the cluster."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice
from time import sleep
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

from pyspark_kafka_meta.kafka.metadata.cache import RETRIABLE_ERRORS
from pyspark_kafka_meta.tools.shared.console import error_text, note
from pyspark_kafka_meta.tools.shared.formatting import plain

T = TypeVar("T")


def watch(
    look: Callable[[], T],
    show: Callable[[T], None],
    draw: Callable[[T], RenderableType],
    terminal: Console | None,
    every_s: float,
    times: int | None,
) -> bool:
    """Look until Ctrl-C, or `times` times. Continues if no broker responds, and reports it.

    Args:
        show: prints a look where there is no terminal.
        draw: what a terminal shows until the next look.
        terminal: None for JSON and in a pipe.

    Returns:
        Whether a broker responded in the last look.

    Raises:
        KafkaMetaError: an error that is not retriable, such as a refused login.
    """
    if terminal is None:
        return _repeat(look, show, note, every_s, times)
    with Live(console=terminal, auto_refresh=False) as live:
        return _repeat(
            look,
            lambda seen: live.update(draw(seen), refresh=True),
            lambda text: live.update(plain(text, "red"), refresh=True),
            every_s,
            times,
        )


def _repeat(
    look: Callable[[], T],
    show: Callable[[T], None],
    report: Callable[[str], None],
    every_s: float,
    times: int | None,
) -> bool:
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
            show(seen)
    return has_response

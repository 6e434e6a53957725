"""Output of the commands: control characters of brokers are removed, and an error is one red line.

And how they end: by Ctrl-C and SIGTERM alike, in good order.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

from pyspark_kafka_meta.errors import KafkaMetaError
from pyspark_kafka_meta.kafka.metadata import cache_state
from pyspark_kafka_meta.options.checks import NO_SERVERS
from pyspark_kafka_meta.tools.shared.formatting import printable

ENDS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 128 + signal.SIGINT
GIVEN_AS = {"metricsPath": "--path", "metricsTopic": "--topic", "kafka.bootstrap.servers": "--bootstrap-servers"}
"""Options of the source, and what the command line calls them."""
_NAMED = re.compile(rf"(?:Option )?('?)\b({'|'.join(map(re.escape, GIVEN_AS))})\b\1")


def for_people(as_json: bool) -> Console | None:
    """The console for tables; None for JSON: requested, or the output is no terminal."""
    console = Console()
    return console if console.is_terminal and not as_json else None


def print_json(row: Mapping[str, Any]) -> None:
    """One line, flushed at once to the reader of the pipe."""
    typer.echo(json.dumps(row, default=str))


def error_text(error: KafkaMetaError) -> str:
    """The error in one line, with the option names of the command line."""
    text = str(error).replace(NO_SERVERS, "give --bootstrap-servers, or a --config that names them")
    return _NAMED.sub(lambda found: GIVEN_AS[found[2]], "; ".join(text.splitlines()))


def note(text: str) -> None:
    """For people, beside the output."""
    typer.echo(f"kafkameta: {printable(text)}", err=True)


class _Warnings(logging.Handler):
    """What is logged of this package, as notes: bare on the screen, its origin would not be clear."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != cache_state.__name__:  # the command itself reports that no broker responds
            note(record.getMessage())


WARNINGS = _Warnings(logging.WARNING)


def end_in_good_order() -> None:
    """Have Ctrl-C and SIGTERM alike end what runs from now on, and what it started, as `reporting` says."""
    for number in ENDS:
        signal.signal(number, signal.default_int_handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM come when this is over: while py4j waits for an answer they cost it the gateway, and the query
    could not be stopped. They are the main thread's alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {ending: signal.signal(ending, lambda number, _: came.append(number)) for ending in ENDS}
    try:
        yield
    finally:
        for ending, handler in handlers.items():
            signal.signal(ending, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def reporting(until_ended: bool = False) -> Iterator[None]:
    """Ends the command with exit code 1 after an error of ours, and after Ctrl-C as shells do, so that nothing goes on
    behind an `&&`.

    Args:
        until_ended: whether Ctrl-C is how the command is meant to end: with 0.
    """
    try:
        yield
    except KafkaMetaError as error:
        typer.secho(f"kafkameta: {printable(error_text(error))}", err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(0 if until_ended else INTERRUPTED) from None

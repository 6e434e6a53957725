"""Output of the commands: control characters of brokers are removed, and an error is one red line.

It also has how commands repeat a look at the cluster (`--watch`), and how Ctrl-C and SIGTERM end them.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import threading
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice
from time import sleep
from typing import Any, Generic, NamedTuple, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from pyspark_kafka_meta.errors import RETRIABLE_ERRORS, KafkaMetaError, OptionError, UnknownTopicError
from pyspark_kafka_meta.kafka.metadata import cache_state
from pyspark_kafka_meta.kafka.protocol.error_codes import describe
from pyspark_kafka_meta.model import MetadataResponse, shortened
from pyspark_kafka_meta.options.client import NO_SERVERS
from pyspark_kafka_meta.tools.formatting import escaped, plain

T = TypeVar("T")
ENDS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 128 + signal.SIGINT
GIVEN_AS = {"eventsPath": "--path", "eventsTopic": "--events-topic", "kafka.bootstrap.servers": "--bootstrap-servers"}
"""Options of the source, and what the command line calls them."""
_NAMED = re.compile(rf"(?:Option )?('?)\b({'|'.join(map(re.escape, GIVEN_AS))})\b\1")


def table_console(as_json: bool) -> Console | None:
    """The console for tables; None for JSON: requested, or the output is no terminal."""
    console = Console()
    return console if console.is_terminal and not as_json else None


def print_json(row: Mapping[str, Any]) -> None:
    """One line, flushed at once to the reader of the pipe."""
    typer.echo(json.dumps(row, default=readable))


def print_lines(rows: Iterable[Mapping[str, Any]]) -> None:
    """As JSON lines."""
    for row in rows:
        print_json(row)


def readable(value: object) -> object:
    """A value that JSON does not have. Bytes that are no UTF-8 become an object, which no text can be taken for."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


def error_text(error: KafkaMetaError) -> str:
    """The error in one line, with the option names of the command line."""
    text = str(error).replace(NO_SERVERS, "give --bootstrap-servers, or a --config that names them")
    return _NAMED.sub(lambda found: GIVEN_AS[found[2]], "; ".join(text.splitlines()))


def timeout_options(timeout_ms: int) -> dict[str, str]:
    """The `kafka.*` options for brokers that must respond within `timeout_ms`: a user does not wait a minute."""
    names = ("kafka.socket.connection.setup.timeout.ms", "kafka.default.api.timeout.ms")
    return dict.fromkeys(names, str(timeout_ms))


def check_topics(response: MetadataResponse) -> None:
    """Raises UnknownTopicError: a requested topic does not exist, or this user may not describe it."""
    for topic in response.topics:
        if topic.error_code:
            error = describe(topic.error_code)
            raise UnknownTopicError(f"topic {shortened(topic.name)} cannot be read ({error}): correct --topic")


def note(text: str) -> None:
    """For people, beside the output."""
    typer.echo(f"kafkameta: {escaped(text)}", err=True)


class _Warnings(logging.Handler):
    """Prints warnings of this package as notes, so that their origin is clear."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != cache_state.__name__:  # the command itself reports that no broker responds
            note(record.getMessage())


WARNINGS = _Warnings(logging.WARNING)


def handle_signals() -> None:
    """From now on, Ctrl-C and SIGTERM end the command, and what it started, as `reporting` says."""
    for number in ENDS:
        signal.signal(number, signal.default_int_handler)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM to the end of the block: while py4j waits for a response they would cost it the gateway,
    and the query could not be stopped. Only the main thread gets signals."""
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
    after an `&&`; with 0 if the command is meant to run `until_ended` by it."""
    try:
        yield
    except KafkaMetaError as error:
        typer.secho(f"kafkameta: {escaped(error_text(error))}", err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(0 if until_ended else INTERRUPTED) from None


class Tables(Generic[T]):
    """Prints tables with the same columns; `draw` gets the rows, and whether to show a header: only for the first."""

    def __init__(self, console: Console, draw: Callable[[Sequence[T], bool], RenderableType]) -> None:
        self._console = console
        self._draw = draw
        self._is_first = True

    def __call__(self, rows: Sequence[T]) -> None:
        if rows:
            self._console.print(self._draw(rows, self._is_first))
            self._is_first = False


class Shown(NamedTuple, Generic[T]):
    """How a look at the cluster is shown: as lines of JSON, or drawn on a terminal."""

    rows: Callable[[T], Iterable[Mapping[str, Any]]]
    draw: Callable[[T], RenderableType]

    def show(self, seen: T, terminal: Console | None) -> None:
        """`terminal` is None for JSON and in a pipe."""
        if terminal is not None:
            terminal.print(self.draw(seen))
            return
        print_lines(self.rows(seen))


def show_looks(
    look: Callable[[], T], shown: Shown[T], terminal: Console | None, every_s: float | None, times: int | None
) -> T | None:
    """Look and show once; with `every_s` until Ctrl-C, or `times` times. A watch goes on while no broker responds, and
    reports it. Returns what was seen at last; None if no broker responded then. Raises OptionError: there are `times`
    without `every_s`; KafkaMetaError: of a single look, or one that is not retriable, such as a refused login."""
    if every_s is None:
        if times is not None:
            raise OptionError("--count needs --watch")
        seen = look()
        shown.show(seen, terminal)
        return seen
    if terminal is None:
        return _repeat(look, lambda seen: shown.show(seen, None), note, every_s, times)
    with Live(console=terminal, auto_refresh=False) as live:
        return _repeat(
            look,
            lambda seen: live.update(shown.draw(seen), refresh=True),
            lambda text: live.update(plain(text, "red"), refresh=True),
            every_s,
            times,
        )


def _repeat(
    look: Callable[[], T], show: Callable[[T], None], report: Callable[[str], None], every_s: float, times: int | None
) -> T | None:
    seen = None
    for number in islice(count(), times):
        if number > 0:
            sleep(every_s)
        try:
            seen = look()
        except RETRIABLE_ERRORS as error:
            seen = None
            report(error_text(error))
        else:
            show(seen)
    return seen

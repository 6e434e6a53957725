"""From JSON lines to refresh events; pure.

Invalid lines are skipped and counted. Fields of newer versions are ignored, missing fields of older versions are null,
and nulls in lists are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Required, TypedDict, cast, get_args, get_type_hints

from pyspark_kafka_meta.events.event import COLUMNS, column_types
from pyspark_kafka_meta.tables.rows import type_builder, without_none
from pyspark_kafka_meta.value_checks import INT64_MAX

logger = logging.getLogger(__name__)

REQUIRED = ("cache_id", "sequence", "time_ms")
"""Without these an event cannot be identified."""
_AMOUNTS = frozenset(
    (
        *("sequence", "generation_before", "generation_after", "age_ms", "idle_ms", "lookups", "latency_ms"),
        *("recovery_ms", "request_bytes", "response_bytes", "throttle_ms", "fetch_throttle_ms", "produce_throttle_ms"),
        *("retries", "transactions_begun", "transactions", "transactions_ms", "copied_records", "malformed_records"),
        *("lost_from_offset", "lost_until_offset", "dropped_before", "requests", "records"),
    )
)
"""Counts, sizes and durations, of events and of the members of their lists. Readers of events add them up."""
_MAX_AMOUNT = 2**53
"""A double has every integer up to it. A thousand such amounts still fit a column."""
_MAX_TIME_MS = 253_402_300_800_000 - 24 * 3_600_000
"""A day before the year 10000, the end of Python's datetime in every time zone; exclusive."""
_MAX_ID = 2**31 - 1
"""Of brokers, partitions and leader epochs."""


def parse_events(lines: Iterable[bytes | None], names: Iterable[str] = COLUMNS) -> Iterator[dict[str, Any]]:
    """The events in `lines` with these fields and those that identify them; `time` is microseconds since 1970 UTC. A
    final warning counts invalid lines."""
    names = frozenset((*names, *REQUIRED))
    parse, has_time, invalid = _parser(names), "time" in names, 0
    for line in lines:
        if (event := parse(line or b"")) is None:
            invalid += 1
            continue
        if has_time:
            event["time"] = event["time_ms"] * 1_000
        yield event
    if invalid:
        logger.warning("skipped lines that are not refresh events: %d", invalid)


@lru_cache
def _parser(names: frozenset[str]) -> Callable[[bytes], dict[str, Any] | None]:
    import msgspec

    ordered = [name for name in COLUMNS if name in names]
    nulls = dict.fromkeys(ordered)
    refusals = (msgspec.MsgspecError, ValueError, RecursionError)
    of_this_version, of_any = (msgspec.json.Decoder(_event_type(ordered, each)).decode for each in (True, False))
    types = column_types()
    members = {name: dict.fromkeys(get_type_hints(get_args(without_none(types[name]))[0])) for name in _lists(ordered)}

    # Most lists are empty: one for all spares memory, and the garbage collector its work.
    nothing: list[Any] = []

    def parse(line: bytes) -> dict[str, Any] | None:
        try:
            event: dict[str, Any] = of_this_version(line)
        except refusals:
            return parse_any(line)
        for name in members:
            if event[name] == nothing:
                event[name] = nothing
        return event

    def parse_any(line: bytes) -> dict[str, Any] | None:
        try:
            event = of_any(line)
        except refusals:
            return None
        lists = {name: _complete(event[name], fields) for name, fields in members.items() if event.get(name)}
        return {**nulls, **event, **lists}

    return parse


def _lists(names: Collection[str]) -> list[str]:
    types = column_types()
    return [name for name in names if get_args(without_none(types[name]))]


def _complete(items: list[Any], fields: Mapping[str, None]) -> list[Any]:
    """The members of a list that are not null, with all fields."""
    return [{**fields, **item} if fields else item for item in items if item is not None]


def _event_type(names: Collection[str], is_complete: bool) -> Any:
    """What msgspec decodes: a dict with these fields; if it `is_complete` with all, and without nulls in lists."""
    from msgspec import Meta

    number, decimal = Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)], float
    amount = Meta(ge=0, le=_MAX_AMOUNT)
    typed_dict, typed_list = cast("Any", TypedDict), cast("Any", list)  # of values, which mypy does not follow

    def restricted(name: str, kind: Any, numbers: Any) -> Any:
        if kind not in (number | None, decimal | None):
            return kind
        if name in _AMOUNTS:
            return Annotated[int if kind == number | None else float, amount] | None
        return numbers if kind == number | None else kind

    def struct(members: Mapping[str, Any]) -> Any:
        ids = Annotated[int, Meta(ge=-_MAX_ID, le=_MAX_ID)] | None
        fields = {name: restricted(name, kind, ids) for name, kind in members.items()}
        return typed_dict("Member", fields, total=is_complete)

    def array(member: Any) -> Any:
        return typed_list[without_none(member) if is_complete else member | None] | None

    build = type_builder({int: number | None, float: decimal | None, str: str | None, bool: bool | None}, array, struct)
    types = column_types()
    fields = {name: restricted(name, build(types[name]), number | None) for name in names}
    fields["cache_id"] = Required[str]
    fields["sequence"] = Required[Annotated[int, amount]]
    fields["time_ms"] = Required[Annotated[int, Meta(ge=0, lt=_MAX_TIME_MS)]]
    return typed_dict("Event", fields, total=is_complete)

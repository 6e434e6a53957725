"""Values of 40,000 characters: an option refuses them, or accepts them, and no error repeats them whole."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import OPTIONS, ClusterOptions, EventTableOptions, SinkOptions, SourceOptions

LONG = "x" * 40_000
TEXTS = (LONG, f"a,{LONG}", f'{{"{LONG}":{{"0":1}}}}', f'{{"t":{{"{LONG}":1}}}}', f'{{"{LONG}":[0]}}', f"group:{LONG}")
MAX_ERROR = 1_500
SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def test_no_option_repeats_a_long_value_in_its_error() -> None:
    for option, text in product(OPTIONS.values(), TEXTS):
        try:
            option.value(text)
        except OptionError as error:
            assert len(str(error)) < MAX_ERROR, option.name


NAMES = ("subscribe", "topic", "eventsTopic", "decisionsTopic", "kafka.transactional.id", "commitOffsetsToGroup")


@pytest.mark.parametrize("name", NAMES)
def test_no_option_accepts_a_long_name(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        OPTIONS[name].value(LONG)


PARSERS: dict[str, tuple[type, Mapping[str, str]]] = {
    "read": (SourceOptions, {**SERVERS, "subscribe": LONG, "eventsTopic": LONG, "startingOffsets": LONG}),
    "write": (SinkOptions, {**SERVERS, "topic": LONG, "eventsTopic": LONG, "decisionsTopic": LONG}),
    "table of the cluster": (ClusterOptions, {**SERVERS, "subscribe": LONG}),
    "table of transactions": (ClusterOptions, {**SERVERS, "decisionsTopic": LONG}),
    "table of events": (EventTableOptions, {**SERVERS, "eventsTopic": LONG}),
}


@pytest.mark.parametrize(("parser", "options"), PARSERS.values(), ids=PARSERS.keys())
def test_no_query_accepts_or_repeats_a_long_name(parser: type, options: Mapping[str, str]) -> None:
    with pytest.raises(OptionError) as raised:
        parser.parse(options)  # type: ignore[attr-defined]
    assert all(len(line) < MAX_ERROR for line in str(raised.value).splitlines())

"""What `kafkameta replay` shows of letters before it sends their records, and which letters it takes."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.model import TopicPartition
from pyspark_kafka_meta.tools.cli.replay import MAX_CAUSES, LetterFilter, LettersByCause
from pyspark_kafka_meta.typed.dead_letters import Letter

LETTER = Letter(TopicPartition("my-orders", 0), 42, "no frame: its first byte is not 0", None, b"", (), None)


def test_few_causes_are_shown_however_many_there_are() -> None:
    found = LettersByCause(("t", f"cause {min(number, 30)}") for number in range(50))
    rows = list(found.rows())

    assert rows[0] == {"topic": "t", "cause": "cause 30", "letters": 20}
    assert rows[-1] == {"topic": None, "cause": "other causes", "letters": 50 - 20 - (MAX_CAUSES - 1)}
    assert len(rows) == found.table().row_count == MAX_CAUSES + 1


@pytest.mark.parametrize(
    ("wanted", "is_taken"),
    [
        (LetterFilter(None, "", 0), True),
        (LetterFilter("my-orders", "no frame", 5), True),
        (LetterFilter("orders", "", 0), False),
        (LetterFilter(None, "schema", 0), False),
        (LetterFilter(None, "", 6), False),
    ],
)
def test_letters_are_chosen_by_topic_cause_and_time(wanted: LetterFilter, is_taken: bool) -> None:
    assert wanted.takes(LETTER, 5_999) is is_taken

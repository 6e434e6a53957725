"""Which partitions `kafkameta doctor --topic` fetches from."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.cli.checks.topics import one_of_each_leader
from pyspark_kafka_meta.tables.rows import PartitionRow


@pytest.mark.parametrize(("start", "end"), [(None, 5), (0, None), (None, None)])
def test_none_that_did_not_tell_where_it_begins_and_ends(start: int | None, end: int | None) -> None:
    row = PartitionRow(topic="t", partition=0, leader_id=1, leader_epoch=0, start_offset=start, end_offset=end)
    assert one_of_each_leader([row]) == []

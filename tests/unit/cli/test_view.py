"""The page's broker cards, where caches alone tell of brokers."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.cli.demo.state import State
from pyspark_kafka_meta.cli.page.render import render
from pyspark_kafka_meta.cli.page.view import view_of
from pyspark_kafka_meta.tables.rows import BrokerRow


@pytest.mark.parametrize(("answered_by", "badge"), [("", None), ("b:9", "alive")])
def test_a_broker_is_called_alive_only_where_the_cluster_was_asked(answered_by: str, badge: str | None) -> None:
    row = BrokerRow(
        node_id=1, host="b", port=9, rack=None, is_controller=False, cluster_id=None, answered_by=answered_by
    )
    seen = State(0, [row], [], None, [], [], {}, {}, 0.0)
    (card,) = view_of(seen, {1: row}, (), {}, by_place=False).brokers
    html = render("broker", broker=card)

    assert ("badge" in html, "dead" in html) == (badge is not None, False)
    assert badge is None or badge in html

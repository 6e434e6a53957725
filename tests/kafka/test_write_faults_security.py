"""ACLs change under a task that writes."""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka.admin import AclOperation

from pyspark_kafka_meta.errors import AuthorizationError
from tests.kafka.secured_kafka import SecuredKafka
from tests.kafka.writing_harness import Worker

pytestmark = pytest.mark.kafka

FAILURE_S = 10
USER, TOPIC = "grace", "written"


@pytest.mark.parametrize("secured", ["SASL_PLAINTEXT"], indirect=True)
def test_right_that_is_taken_away_ends_the_attempt_and_the_next_attempt_needs_it_back(secured: SecuredKafka) -> None:
    secured.create_topic(TOPIC)
    secured.allow(USER, AclOperation.WRITE, TOPIC)
    worker = Worker(
        secured.kafka.admin_servers, TOPIC, **secured.options(USER), **{"kafka.bootstrap.servers": secured.servers}
    )
    with closing(worker.client):
        with worker.attempt(partitions=1) as attempt:
            attempt.write_on()
            secured.forbid(USER)
            text = attempt.wait_for_error(AuthorizationError, FAILURE_S)
        assert f"no ACL allows this user WRITE on topic {TOPIC}" in text
        secured.allow(USER, AclOperation.WRITE, TOPIC)
        worker.retry()
        worker.assert_written()

"""Which address of a host name is tried first, after others have failed."""

from __future__ import annotations

import pytest

from pyspark_kafka_meta.kafka.network.sockets import MAX_NAMES, Candidate, FailedAddresses
from pyspark_kafka_meta.model import Address

HOST = Address("kafka.example", 9092)
A, B, C = ((family, (ip, 9092)) for family, ip in ((10, "2001:db8::1"), (2, "192.0.2.1"), (2, "192.0.2.2")))


@pytest.mark.parametrize(
    ("failed", "order"),
    [
        ([], [A, B, C]),
        ([A], [B, C, A]),
        ([B], [C, A, B]),
        ([C], [A, B, C]),
        ([A, B], [C, A, B]),
        ([A, B, C], [A, B, C]),
        ([B, A], [B, C, A]),
        ([(2, ("192.0.2.9", 9092))], [A, B, C]),
    ],
)
def test_order_begins_after_the_address_that_failed_last(failed: list[Candidate], order: list[Candidate]) -> None:
    failures = FailedAddresses()
    for candidate in failed:
        failures.add(HOST, candidate)
    assert failures.in_order(HOST, [A, B, C]) == order


def test_failed_address_is_last_in_whichever_order_a_resolver_returns_it() -> None:
    failures = FailedAddresses()
    failures.add(HOST, A)
    for resolved in ([A, B, C], [C, A, B], [B, C, A], [B, A, C]):
        assert failures.in_order(HOST, resolved)[-1] == A


@pytest.mark.parametrize("other", [Address("kafka.example", 9093), Address("other.example", 9092)])
def test_other_names_and_ports_keep_their_order(other: Address) -> None:
    failures = FailedAddresses()
    failures.add(HOST, A)
    assert failures.in_order(other, [A, B]) == [A, B]


def test_name_with_one_address_keeps_it() -> None:
    failures = FailedAddresses()
    failures.add(HOST, A)
    assert failures.in_order(HOST, [A]) == [A]


def test_number_of_names_is_bounded() -> None:
    failures = FailedAddresses()
    for number in range(3 * MAX_NAMES):
        failures.add(Address(f"broker-{number}", 9092), A)
    assert len(failures) <= MAX_NAMES
    assert failures.in_order(Address(f"broker-{3 * MAX_NAMES - 1}", 9092), [A, B]) == [B, A]

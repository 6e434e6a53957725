"""A decision as records of the decisions topic, and back.

The key of a record is the sink's transactional id and the series, its value the decision, both as JSON. A decision
names each partition of each task: above `PART_BYTES`, about 20,000 of these pairs, its text is cut into parts. Their
keys end with their number, and the record with the decision's own key says how many there are. All are written in one
transaction.

Compaction keeps the last record of each key. It cannot make one decision out of the parts of two:

- Only records of one transaction are joined. Compaction ignores aborted records, and stops before open transactions.
- Whatever replaces a part is a part of a later decision of the series, whose transaction also has a record with the
  decision's own key. So the last decision is complete. A reader may find that an earlier one lacks parts, if compaction
  goes on meanwhile: it ignores it for the later one.
- If the later decision has fewer parts or none, the other old parts stay in the log, without the record that counts
  them, and are ignored. A sink leaves as many as its largest decision had.

A settled decision replaces the decision, or a note says that all its transactions are committed. A note is in no
transaction. It has a key of its own, and names the decision, so that a late note of a driver that was fenced settles no
later decision. After compaction, a late note may have replaced that of a later decision. This decision is then settled
again, for which the markers of its transactions must still be in the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, Literal, NamedTuple, TypeAlias

from pyspark_kafka_meta.errors import ProtocolError
from pyspark_kafka_meta.model import OpenTransaction, ProducerIdAndEpoch, RowDigest, TransactionSpan
from pyspark_kafka_meta.write.exactly_once.decision import BatchId, Decision

FORMAT, PARTS_FORMAT = 1, 2
"""Of a whole decision, and of the record that counts parts."""
PART_BYTES = 1_000_000
NOTE: Final = "settled"
"""In place of a part's number, in the key of the note."""
MESSAGE_BYTES = 1_048_588
"""Kafka's default of max.message.bytes. A part fits, with its key and the header of its batch."""


Record: TypeAlias = tuple[bytes, bytes | None]
"""Key and value."""


class RecordKey(NamedTuple):
    """The key of a record: of a decision, of its part with this number, or of the note that it is settled (`NOTE`)."""

    transactional_id: str
    series: str
    part: int | Literal["settled"] | None = None

    @classmethod
    def parse(cls, key: bytes | None) -> RecordKey | None:
        """None if the record is none of a decision."""
        with suppress(ValueError):
            match json.loads(key or b""):
                case [str(transactional_id), str(series)]:
                    return cls(transactional_id, series)
                case [str(transactional_id), str(series), (int() | "settled") as part]:
                    return cls(transactional_id, series, part)
        return None

    def to_json(self) -> bytes:
        return json.dumps(self[:2] if self.part is None else self).encode()


def confirming_record(transactional_id: str) -> Record:
    """A record of this sink that is none of a decision, and that compaction removes."""
    return json.dumps([transactional_id]).encode(), None


def settled_note(transactional_id: str, decision: Decision) -> tuple[bytes, bytes]:
    """The record which says that all transactions of this decision are committed."""
    return RecordKey(transactional_id, decision.batch.series, NOTE).to_json(), note_of(decision)


def note_of(decision: Decision) -> bytes:
    """What names this decision in a note."""
    return json.dumps([decision.batch.owner, decision.batch.version, decision.time_ms]).encode()


def decision_records(transactional_id: str, decision: Decision) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of the records that hold a decision of this sink."""
    text, key = _to_json(decision), RecordKey(transactional_id, decision.batch.series)
    if len(text) <= PART_BYTES:
        yield key.to_json(), text
        return
    starts = range(0, len(text), PART_BYTES)
    yield key.to_json(), json.dumps({"format": PARTS_FORMAT, "parts": len(starts)}).encode()
    for number, start in enumerate(starts):
        yield key._replace(part=number).to_json(), text[start : start + PART_BYTES]


def joined(key: RecordKey, values: Mapping[RecordKey, bytes]) -> Decision | None:
    """The decision with this key, which has no part number; None if it lacks parts.

    Args:
        values: of the records of one transaction.

    Raises:
        ProtocolError: a newer release of this package wrote the decision.
        TypeError, ValueError, KeyError: something else wrote the record.
    """
    fields = json.loads(values[key])
    if fields["format"] == PARTS_FORMAT:
        parts = [key._replace(part=number) for number in range(min(fields["parts"], len(values)))]
        if not values.keys() >= set(parts):
            return None
        fields = json.loads(b"".join(values[part] for part in parts))
    if fields["format"] != FORMAT:
        raise ProtocolError(
            f"the last decision of this sink has format {fields['format']}, and this release reads {FORMAT} and "
            f"{PARTS_FORMAT}: use the release that wrote it, or a newer one"
        )
    transactions = tuple(
        OpenTransaction(
            transactional_id, ProducerIdAndEpoch(*producer), tuple(TransactionSpan(*each) for each in written)
        )
        for transactional_id, producer, written in fields["transactions"]
    )
    batch = BatchId(key.series, fields["owner"], fields["version"])
    return Decision(
        batch,
        transactions,
        fields["time_ms"],
        fields["is_settled"],
        tuple(fields["former_owners"]),
        # Until the first release: a clone of before wrote neither.
        _rows(fields.get("rows")),
        tuple((version, _rows(rows)) for version, rows in fields.get("earlier", ())),
    )


def _rows(fields: list[int] | None) -> RowDigest | None:
    return None if fields is None else RowDigest(*fields)


def _row_fields(rows: RowDigest | None) -> list[int] | None:
    return None if rows is None else [rows.rows, rows.hash]


def _to_json(decision: Decision) -> bytes:
    batch = decision.batch
    return json.dumps(
        {
            "format": FORMAT,
            "owner": batch.owner,
            "version": batch.version,
            "time_ms": decision.time_ms,
            "is_settled": decision.is_settled,
            "former_owners": decision.former_owners,
            "rows": _row_fields(decision.rows),
            "earlier": [(version, _row_fields(rows)) for version, rows in decision.earlier],
            "transactions": decision.transactions,
        }
    ).encode()

"""`LatestReader`: reads the latest record of each key of a partition, without those that a null value deleted.

It reads the offsets of a task twice: first keys and offsets, of which `LatestOffsets` keeps the last of each key, then
the rows at the offsets that are left. Values are never kept: memory grows with the number of keys, not of records.

Compaction removes records meanwhile, but a record of a key only if a later one has this key, in the order of the log,
and a null value only `delete.retention.ms` later. A log that is not compacted, or whose `min.compaction.lag.ms` is
longer than the task reads, gives the latest values at the end of the range, always the same. Races in others:

- The last record of a key is removed before the first pass reaches it. 1. The end of the range is planned. 2. The key
  is written again, after the end, and compaction removes the record before. 3. The first pass finds an older record
  of the key, or none. Guard, if the range ends only where the log did (`MayEndLater.ANY_KEY`): the first pass goes on
  to the end that the log has then. All that was removed so far is older than a record before this end. In a stream the
  key comes with the next micro-batch. At an end that the user stated, the key may be missing.
- The record is removed between both passes. Guard: the second pass knows which offsets it did not find. It looks for
  the later records of their keys after the end: such a row is newer than the end, never older or missing. A key without
  one was deleted, and its null value is gone as well, or it aged out: it has no row. A stream leaves such keys to its
  next micro-batch.
- An older record survives its successor. 1. The first pass reads from a replica on which compaction lags behind.
  2. Another replica, where a null value is gone already, serves the rest. 3. The first serves the second pass: a
  deleted key has a row. Not noticed: it needs two changes of the replica, and replicas whose cleaners are
  `delete.retention.ms` apart.
- The log is truncated by an unclean election, and the offsets of the first pass belong to other records. Guard: after
  the last row, the leader says where the epoch that was read ends in its log (KIP-320).

Tombstones of open and of aborted transactions delete nothing under read_committed, as their records are not read.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafka_meta.arrow_arrays import Bytes, Flags, Longs, memory_of, number_array, offsets_of
from pyspark_kafka_meta.errors import DataLossError, MissingKeyError, UnsupportedBrokerError
from pyspark_kafka_meta.kafka.client.kafka_client import COMPACT, KafkaClient
from pyspark_kafka_meta.kafka.protocol.list_offsets import LATEST_TIMESTAMP
from pyspark_kafka_meta.kafka.records.schema import TOMBSTONE_COLUMN, rows_without_columns
from pyspark_kafka_meta.model import NO_EPOCH, OffsetRange
from pyspark_kafka_meta.options import ReadOptions
from pyspark_kafka_meta.read.fetching.task_reader import TaskReader

SHARDS = 16
"""Keys are kept in so many tables: while one of them is rebuilt, it takes three to four times its memory."""
MIN_PENDING = 16_384
"""Rows that wait until a table is rebuilt. Later half as many as it has keys."""
_WEIGHTS = (np.arange(256, dtype=np.uint64) ** 3 * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(48)).astype(np.uint16)


class MayEndLater(Enum):
    """Which rows may be newer than the end of the range."""

    ANY_KEY = auto()
    """All rows of a compacted topic: the range ends where the log did when a batch was planned."""
    REMOVED_KEY = auto()
    """Those of keys whose record compaction removed meanwhile: a user stated the end of the batch."""
    NO_KEY = auto()
    """None: the next micro-batch of a stream begins at the end."""


class LatestOffsets:
    """The last offset of each key, and whether the value there is null.

    Measured: ten million keys of 20 bytes take 1 GB at most, and a million records a second of one core.
    """

    def __init__(self) -> None:
        # Of each shard: a table of distinct keys, and those that wait. `at` is twice the offset, plus 1 for a null
        # value, so that the maximum of a key has both.
        self._known = [_table(pa.array([], pa.binary()), np.zeros(0, np.int64))] * SHARDS
        self._pending: list[list[pa.Table]] = [[] for _ in range(SHARDS)]
        self._waiting = np.zeros(SHARDS, np.int64)

    def add(self, keys: pa.BinaryArray, offsets: Longs, are_null: Flags) -> None:
        """Later records, or earlier ones: the greatest offset counts.

        Args:
            keys: none is null.
        """
        shards = _shards(keys)
        order = np.argsort(shards, kind="stable")
        rows = _table(keys, 2 * offsets + are_null).take(number_array(order))
        counts = np.bincount(shards, minlength=SHARDS)
        for shard, (count, end) in enumerate(zip(counts.tolist(), np.cumsum(counts).tolist(), strict=True)):
            self._pending[shard].append(rows.slice(end - count, count))
        # A slice keeps the memory of all its rows, so that a shard of few rows waits no longer than the others.
        self._waiting += np.maximum(counts, len(keys) // SHARDS)
        for shard in np.flatnonzero(self._waiting >= MIN_PENDING).tolist():
            if self._waiting[shard] >= self._known[shard].num_rows // 2:
                self._rebuild(shard)

    def live(self) -> Longs:
        """The offsets of the last records, sorted, without those whose value is null."""
        for shard in range(SHARDS):
            self._rebuild(shard)
        at = np.concatenate([table.column("at").to_numpy() for table in self._known])
        return np.sort(at[at % 2 == 0] // 2)

    def keys_at(self, offsets: Longs) -> pa.ChunkedArray:
        """The keys of these offsets, which are among those of `live`."""
        wanted = number_array(2 * offsets)
        return pa.chunked_array(
            [
                chunk
                for table in self._known
                for chunk in table.filter(pc.is_in(table.column("at"), wanted)).column("key").chunks
            ],
            pa.binary(),
        )

    def _rebuild(self, shard: int) -> None:
        tables = [self._known[shard], *self._pending[shard]]
        self._pending[shard], self._waiting[shard] = [], 0
        grouped = pa.concat_tables(tables).group_by("key", use_threads=False).aggregate([("at", "max")])
        self._known[shard] = pa.table({"key": grouped.column("key"), "at": grouped.column("at_max")})


def _table(keys: pa.BinaryArray, at: Longs) -> pa.Table:
    return pa.table({"key": keys, "at": number_array(at)})


def _shards(keys: pa.BinaryArray) -> Bytes:
    """A number below `SHARDS` for each key: of the sum of a weight for each byte, which numpy adds for all keys."""
    ends = offsets_of(keys)
    sums = np.zeros(ends[-1] - ends[0] + 1, np.uint16)
    np.cumsum(_WEIGHTS[memory_of(keys)[ends[0] : ends[-1]]], dtype=np.uint16, out=sums[1:])
    sums = sums[ends - ends[0]]
    shards: Bytes = ((sums[1:] - sums[:-1]) % SHARDS).astype(np.uint8)
    return shards


class LatestReader:
    """Reads one partition for a task."""

    def __init__(
        self, client: KafkaClient, options: ReadOptions, columns: Sequence[str], may_end_later: MayEndLater
    ) -> None:
        self._client = client
        self._options = options
        self._columns = columns
        self._may_end_later = may_end_later

    def read(self, planned: OffsetRange, topics: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """The rows, in the order of offsets but for those that compaction removed meanwhile.

        Raises:
            MissingKeyError: a record has no key.
            DataLossError: the log was truncated meanwhile, or as `TaskReader.read`.
        """
        latest, ended = LatestOffsets(), planned
        self._add(latest, planned, topics)
        if self._may_end_later is MayEndLater.ANY_KEY and self._is_compacted(planned.partition.topic):
            ended = self._to_log_end(planned)
            self._add(latest, ended)
        missing = yield from self._rows(replace(ended, from_offset=planned.from_offset), latest.live())
        while len(missing) and self._may_end_later is not MayEndLater.NO_KEY:
            keys, ended, latest = latest.keys_at(missing), self._to_log_end(ended), LatestOffsets()
            self._add(latest, ended, keys=keys)
            missing = yield from self._rows(ended, latest.live())
        for each in {planned, ended}:
            self._check_log(each)

    def _is_compacted(self, topic: str) -> bool:
        """Or not known."""
        return COMPACT in (self._client.cleanup_policy(topic) or COMPACT)

    def _add(
        self,
        latest: LatestOffsets,
        planned: OffsetRange,
        topics: Collection[str] = (),
        keys: pa.ChunkedArray | None = None,
    ) -> None:
        """Add the offsets of all keys in the range, or of these."""
        for batch in TaskReader(self._client, self._options, ("key", "offset", TOMBSTONE_COLUMN)).read(
            [planned] if planned.size else [], topics
        ):
            if batch.column(0).null_count:
                offset = batch.filter(pc.is_null(batch.column(0))).column(1)[0].as_py()
                raise MissingKeyError(
                    f"the record of {planned.partition} at offset {offset} has no key, as Debezium's record of a "
                    "TRUNCATE, so that nothing tells which record replaces it: read the topic without table latest and "
                    "startingOffsets latestByKey"
                )
            if keys is not None:
                batch = batch.filter(pc.is_in(batch.column(0), keys))
            latest.add(batch.column(0), batch.column(1).to_numpy(), batch.column(2).to_numpy(zero_copy_only=False))

    def _rows(self, planned: OffsetRange, wanted: Longs) -> Generator[pa.RecordBatch, None, Longs]:
        """The rows at the wanted offsets, which are sorted. Returns the offsets that have no record any more."""
        found = np.zeros(len(wanted), np.bool_)
        if not len(wanted):
            return wanted
        span = replace(planned, from_offset=int(wanted[0]), until_offset=int(wanted[-1]) + 1, start_epoch=NO_EPOCH)
        columns = (*self._columns, "offset")
        for batch in TaskReader(self._client, self._options, columns).read([span]):
            offsets = batch.column(len(columns) - 1).to_numpy()
            at = np.searchsorted(wanted, offsets)
            are_wanted = wanted[at] == offsets
            found[at[are_wanted]] = True
            rows = batch.filter(pa.array(are_wanted))
            if len(rows):
                names = list(range(len(self._columns)))
                yield rows.select(names) if names else rows_without_columns(len(rows))
        return wanted[~found]

    def _to_log_end(self, planned: OffsetRange) -> OffsetRange:
        """From the end of the range to the end of the log."""
        listed = self._client.list_offsets(
            {planned.partition: LATEST_TIMESTAMP}, self._client.api_deadline(), self._options.fetch.read_committed
        )[planned.partition]
        end = max(planned.until_offset, listed.offset)
        return replace(
            planned,
            from_offset=planned.until_offset,
            until_offset=end,
            start_epoch=planned.leader_epoch,
            leader_epoch=max(planned.leader_epoch, listed.leader_epoch),
        )

    def _check_log(self, ended: OffsetRange) -> None:
        """Fail if the log was truncated before the end that was read."""
        if ended.leader_epoch == NO_EPOCH:
            return
        with suppress(UnsupportedBrokerError):  # as while planning
            epochs = {ended.partition: ended.leader_epoch}
            end = self._client.epoch_end_offsets(epochs, self._client.api_deadline())[ended.partition].offset
            if 0 <= end < ended.until_offset:
                raise DataLossError(
                    f"the log of {ended.partition} was truncated to offset {end} while the latest values of its keys "
                    f"were read up to offset {ended.until_offset}: read them again"
                )

"""The errors that this package raises: each message is one clear sentence with what to do next, never a secret.

Classes differ by what the caller can do: fix an option, check the cluster, decide about lost data. They can be pickled,
because Spark sends them from workers to the driver.
"""

from __future__ import annotations


class KafkaMetaError(Exception):
    """Base of all errors of this package. Further arguments are attributes, so that pickle keeps them."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class OptionError(KafkaMetaError, ValueError):
    """An option is missing, misspelt or invalid. Fix the option and load again."""


class CheckpointError(KafkaMetaError, ValueError):
    """An offset in the checkpoint is unreadable. Restore the checkpoint, or start the query with a new one."""


class ConnectError(KafkaMetaError):
    """No connection to a broker: refused, unreachable, unknown host name, or timed out."""


class UnknownHostError(ConnectError):
    """This machine's resolver does not know the host name of a broker, at least at the moment."""


class RefusedRequestError(ConnectError):
    """The port keeps a silent connection, but closes it at the first request, as TLS ports of other servers do."""


class TlsError(KafkaMetaError):
    """The TLS handshake with a broker failed: unknown authority, wrong host name, expired certificate, refused client
    certificate, or only one side uses TLS. The message says which and what to fix."""


class AuthenticationError(KafkaMetaError):
    """A broker refused this client's login or its mechanism, or failed to prove that it knows the password."""


class RequestTimeoutError(KafkaMetaError):
    """A broker did not respond to a request before its deadline."""


class ProtocolError(KafkaMetaError):
    """A response is malformed or does not match its request; the connection is closed."""


class ResponseTooLargeError(KafkaMetaError):
    """A broker's response is larger than the options allow, and would be again. Raise kafka.fetch.max.bytes."""


class RequestTooLargeError(KafkaMetaError):
    """A request is larger than socket.request.max.bytes of a broker, which closes the connection. The message names the
    size."""


class OtherClusterError(KafkaMetaError):
    """The brokers that respond belong to another cluster than before: an address was given to another cluster, or
    kafka.bootstrap.servers names two clusters. The message names both cluster ids."""


class UnsupportedBrokerError(KafkaMetaError):
    """A broker is too old: it lacks a required API version (Apache Kafka 2.7 or later has all of them)."""


class BrokerError(KafkaMetaError):
    """A broker responded with an error code that is not retriable.

    Attributes:
        code: Kafka's error code, as in `org.apache.kafka.common.protocol.Errors`.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code)
        self.code = code


class AuthorizationError(BrokerError):
    """The cluster's ACLs deny an operation; the message names the operation and the resource."""


class UnknownTopicError(KafkaMetaError):
    """A requested topic or partition does not exist, or ACLs hide it."""


class NoLeaderError(KafkaMetaError):
    """A partition had no reachable leader before the deadline."""


class ReadTimeoutError(KafkaMetaError):
    """A partition of a task made no progress within kafkaConsumer.pollTimeoutMs."""


class CorruptBatchError(KafkaMetaError):
    """A record batch is inconsistent: checksum, lengths, counts or compressed data. None of its rows is returned.

    Attributes:
        topic, partition: None if unknown.
        from_offset, until_offset: unreadable offsets, the end exclusive; None if unknown.
    """

    def __init__(
        self,
        message: str,
        topic: str | None = None,
        partition: int | None = None,
        from_offset: int | None = None,
        until_offset: int | None = None,
    ) -> None:
        super().__init__(message, topic, partition, from_offset, until_offset)
        self.topic, self.partition = topic, partition
        self.from_offset, self.until_offset = from_offset, until_offset


class UnsupportedRecordFormatError(KafkaMetaError):
    """Records that cannot become Spark rows: message format v0 or v1 (before Kafka 0.11), an unknown codec, or a
    timestamp out of Spark's range. The records are intact, so onCorruptBatch does not skip them."""


class BatchTooLargeError(KafkaMetaError):
    """A record batch decompresses to more than maxDecompressedBatchBytes. Its records may be intact, so onCorruptBatch
    does not skip them. Raise the option.

    Attributes:
        topic, partition, offset: the first unread offset of the batch; None if unknown.
    """

    def __init__(
        self, message: str, topic: str | None = None, partition: int | None = None, offset: int | None = None
    ) -> None:
        super().__init__(message, topic, partition, offset)
        self.topic, self.partition, self.offset = topic, partition, offset


class WorkerMemoryError(KafkaMetaError):
    """A Python worker has no memory left to read or write: raise spark.executor.pyspark.memory. The message names
    options that lower the need."""


class ValueSchemaError(KafkaMetaError):
    """A schema of values cannot be read, or its values cannot be converted to the query's columns."""


class SchemaChangedError(KafkaMetaError):
    """A restarted stream would read values as other columns than before. The message names both schemas and how to
    continue."""


class SchemaRegistryError(KafkaMetaError):
    """The schema registry refused a request, did not respond in time, or responded with something else than Confluent's
    API. The message says which and what to check.

    Attributes:
        code: the registry's error code, such as 40403, else the HTTP status; None without a response.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message, code)
        self.code = code


class UnknownSchemaError(SchemaRegistryError):
    """The registry does not have the schema, subject or version."""


class MalformedRecordError(KafkaMetaError):
    """A key or value does not have the format of keyFormat or valueFormat, and onMalformedRecord is fail, or a task has
    more such records than maxMalformedRecords allows.

    Attributes:
        topic, partition, offset: of the record; None if unknown.
        schema_id: in its frame; None if it has none.
    """

    def __init__(
        self,
        message: str,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        schema_id: int | None = None,
    ) -> None:
        super().__init__(message, topic, partition, offset, schema_id)
        self.topic, self.partition, self.offset, self.schema_id = topic, partition, offset, schema_id


class DeadLetterError(KafkaMetaError):
    """Malformed records cannot be written to deadLetterTopic. The task fails, so that none of them is skipped."""


class MissingKeyError(KafkaMetaError):
    """A record has no key, where the latest record of each key is read. The message names the record."""


class TruncatedTableError(KafkaMetaError):
    """A database's table was truncated, and onTruncate is fail."""


class ClusterError(KafkaMetaError):
    """A test cluster failed to start or to run a command: the message names what is missing or ends with a log."""


class DataLossError(KafkaMetaError):
    """Records of a query are lost; the message names them and how to continue."""


class PartitionsAddedError(KafkaMetaError):
    """A topic of changes got partitions while a query read it: changes of a key may be in two of them, in any order.
    The message says how to continue."""


class SchemaError(KafkaMetaError, ValueError):
    """A DataFrame or a table lacks a column, or a column has another type. The message says what to do."""


class InvalidRowError(KafkaMetaError, ValueError):
    """A row cannot be written: null topic, impossible partition, null key of a header; the message names the row. Or
    changes cannot be applied to a table; the message says why."""


class RecordTooLargeError(KafkaMetaError):
    """A record is larger than kafka.max.request.size or than its topic allows. The message names the row, or the
    decision of an exactly-once write."""


class DeliveryTimeoutError(KafkaMetaError):
    """Records were not acknowledged within kafka.delivery.timeout.ms. The message names the last error."""


class TransactionTimeoutError(KafkaMetaError):
    """A task writes for so long that a broker may abort its transaction: write smaller batches, or raise
    kafka.transaction.timeout.ms. Or the driver cannot write a decision or copies: the message says what to check."""


class ChangedBatchError(KafkaMetaError):
    """A batch of an exactly-once write that counts as written is repeated, perhaps with other rows. None of them is
    written."""


class FencedError(KafkaMetaError):
    """Another query or attempt has taken over a transactional id. The message says which and what to do."""


RETRIABLE_ERRORS = (ConnectError, ProtocolError, RequestTimeoutError)
"""Another broker may respond, or the same broker later."""

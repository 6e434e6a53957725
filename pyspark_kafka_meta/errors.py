"""Every error that this package raises on purpose: one clear sentence, what to do next, never a secret.

The classes say what the caller can do: fix an option, look at the cluster, decide about lost data. They survive
pickling, because Spark carries them from a worker to the driver.
"""

from __future__ import annotations


class KafkaMetaError(Exception):
    """Base of all errors of this package."""


class OptionError(KafkaMetaError, ValueError):
    """An option is missing, misspelt or has a value that cannot be used. Fix the option and load again."""


class CheckpointError(KafkaMetaError, ValueError):
    """An offset in the checkpoint cannot be read. Restore the checkpoint, or start the query with a new one."""


class ConnectError(KafkaMetaError):
    """No connection to a broker: refused, unreachable, unknown host name, or no answer in time."""


class UnknownHostError(ConnectError):
    """The host name of a broker means nothing to this machine's resolver, at the moment at least."""


class TlsError(KafkaMetaError):
    """No encrypted connection to a broker that can be trusted: unknown authority, other host name, expired certificate,
    refused client certificate, or one side alone speaks TLS. The text says which and what to fix."""


class AuthenticationError(KafkaMetaError):
    """A broker refused this client's login or its mechanism, or did not prove that it knows the password itself."""


class RequestTimeoutError(KafkaMetaError):
    """A broker accepted a request and did not answer it before its deadline."""


class ProtocolError(KafkaMetaError):
    """A peer answered something that is not the answer to what was asked; its connection is dropped."""


class ResponseTooLargeError(KafkaMetaError):
    """A broker's answer is larger than the options allow, and would be again. Raise kafka.fetch.max.bytes."""


class UnsupportedBrokerError(KafkaMetaError):
    """A broker is too old: it lacks an API version that this package needs (Apache Kafka 2.7 or later has them all)."""


class BrokerError(KafkaMetaError):
    """A broker answered with an error code that asking again does not heal.

    Attributes:
        code: Kafka's error code, as in `org.apache.kafka.common.protocol.Errors`.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class AuthorizationError(BrokerError):
    """The cluster's ACLs deny an operation; the text names it and what it was on."""


class UnknownTopicError(KafkaMetaError):
    """A topic or partition that was asked for does not exist, or may not be seen."""


class NoLeaderError(KafkaMetaError):
    """A partition had no leader that could be reached until the deadline."""


class ReadTimeoutError(KafkaMetaError):
    """A partition of a task made no progress for as long as kafkaConsumer.pollTimeoutMs allows."""


class CorruptBatchError(KafkaMetaError):
    """The bytes of a record batch contradict themselves: checksum, lengths, counts or decompressed size. No row of it
    is given out.

    Attributes:
        topic, partition: None while they are not known.
        from_offset, until_offset: what cannot be read, the end exclusive; None where the bytes do not say.
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

    def __str__(self) -> str:
        return str(self.args[0])


class UnsupportedRecordFormatError(KafkaMetaError):
    """Records that cannot become Spark rows: message format v0 or v1 (before Kafka 0.11), an unknown codec, or a
    timestamp that Spark cannot hold. They are intact, so that onCorruptBatch does not skip them."""


class ClusterError(KafkaMetaError):
    """A test cluster cannot be started or driven: the text says what is missing, or shows the end of a node's log."""


class DataLossError(KafkaMetaError):
    """Records that a query was to read are gone; the text says which and how to go on without them."""

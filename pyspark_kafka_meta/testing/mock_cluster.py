"""`MockCluster`: brokers inside this process that answer real requests and misbehave when told; no Java, no download.

They are librdkafka's (`rdkafka_mock.h`), called in the library that the confluent-kafka wheel brings along.
"""

from __future__ import annotations

import ctypes
import importlib.util
from ctypes import POINTER, byref, c_char_p, c_int, c_int16, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from pyspark_kafka_meta.errors import ClusterError

NO_BROKER = -1
"""As a leader or follower: none. As the broker of `broker_down`, `broker_up` and `set_rtt_ms`: all of them."""

_RD_KAFKA_PRODUCER = 0
_LIBRARIES = ("confluent_kafka.libs/librdkafka*.so*", "confluent_kafka/.dylibs/librdkafka*.dylib")


class TrackedRequest(NamedTuple):
    """A request that a mock broker got. `timestamp_us` is librdkafka's monotonic clock: good for differences alone."""

    broker_id: int
    api_key: int
    timestamp_us: int


class MockCluster:
    """Mock brokers with ids 1 to `brokers`, listening on the loopback address until `close`, or the end of `with`.

    Write to it and read from it with plain confluent-kafka at `bootstrap_servers`. A leader moves only when told to.

    It proves what a client does about an answer, not that brokers give it. In particular it has no TLS, SASL,
    transactions' control records, aborted records or offsets by time; an ex-leader refuses a fetch where a real one may
    serve it; an answer holds one produced batch at most, and old records go when a partition has 5 MiB. Use
    `LocalKafka` for all that.

    Methods raise ClusterError where librdkafka refuses the call (an unknown broker, say), `create_topic` has not made
    the topic, or the cluster is closed.
    """

    def __init__(self, brokers: int = 3) -> None:
        if brokers < 1:
            raise ClusterError(f"A MockCluster of {brokers} brokers cannot be: give a number from 1 on.")
        self._library = _library()
        self._client = _new_client(self._library)
        self._handle: int | None = self._library.rd_kafka_mock_cluster_new(self._client, brokers)
        self._topics: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the brokers. The second call does nothing."""
        if self._handle is not None:
            self._library.rd_kafka_mock_cluster_destroy(self._handle)
            self._library.rd_kafka_destroy(self._client)
            self._handle = None

    @property
    def bootstrap_servers(self) -> str:
        return str(self._call("cluster_bootstraps").decode())

    def create_topic(self, topic: str, partitions: int = 1, replication: int = 3) -> None:
        self._call("topic_create", topic.encode(), partitions, replication)
        self._topics.add(topic)

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        """Make `broker_id` the leader, or leave the partition without one (`NO_BROKER`). The epoch grows."""
        self._call("partition_set_leader", self._made(topic), partition, broker_id)

    def set_follower(self, topic: str, partition: int, broker_id: int) -> None:
        """Name `broker_id` as the preferred read replica in Fetch answers (KIP-392)."""
        self._call("partition_set_follower", self._made(topic), partition, broker_id)

    def push_leader_response(self, topic: str, partition: int, broker_id: int, leader_epoch: int) -> None:
        """Make one answer to come name this leader and epoch, true or not (Metadata, and Fetch's KIP-951 hints)."""
        self._call("partition_push_leader_response", self._made(topic), partition, broker_id, leader_epoch)

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        """Make `offset` the log start offset."""
        self._call("partition_delete_records", self._made(topic), partition, offset)

    def set_topic_error(self, topic: str, error_code: int) -> None:
        """Have Metadata answers state this error for the topic, until it is set to 0."""
        self._call("topic_set_error", self._made(topic), error_code)

    def push_request_errors(self, api_key: int, *error_codes: int) -> None:
        """Answer the next requests of this kind, at any broker, with these errors in turn; -195 disconnects."""
        errors = (c_int * len(error_codes))(*error_codes)
        self._call("push_request_errors_array", api_key, len(error_codes), errors)

    def push_partition_errors(self, topic: str, partition: int, api_key: int, *error_codes: int) -> None:
        """As `push_request_errors`, for one partition of the request."""
        errors = [c_int(code) for code in error_codes]
        self._call("partition_push_request_errors", self._made(topic), partition, api_key, len(errors), *errors)

    def broker_down(self, broker_id: int) -> None:
        """Drop the broker's connections and refuse new ones. Leaders stay where they are."""
        self._call("broker_set_down", broker_id)

    def broker_up(self, broker_id: int) -> None:
        self._call("broker_set_up", broker_id)

    def set_rtt_ms(self, broker_id: int, rtt_ms: int) -> None:
        """Delay every answer of the broker."""
        self._call("broker_set_rtt", broker_id, rtt_ms)

    def start_request_tracking(self) -> None:
        """Forget the requests tracked so far and track from now on."""
        self._call("start_request_tracking")

    def stop_request_tracking(self) -> None:
        """Track no more, and forget the requests tracked so far."""
        self._call("stop_request_tracking")

    def requests(self) -> list[TrackedRequest]:
        """The requests tracked so far, in the order in which they came."""
        count = c_size_t()
        pointers = self._call("get_requests", byref(count))
        library = self._library
        tracked = [
            TrackedRequest(
                library.rd_kafka_mock_request_id(pointer),
                library.rd_kafka_mock_request_api_key(pointer),
                library.rd_kafka_mock_request_timestamp(pointer),
            )
            for pointer in pointers[: count.value]
        ]
        library.rd_kafka_mock_request_destroy_array(pointers, count)
        return tracked

    def _made(self, topic: str) -> bytes:
        """The name of a topic that there is; librdkafka would make one of a name that is misspelt."""
        if self._handle is not None and topic not in self._topics:
            raise ClusterError(f"This MockCluster has made no topic '{topic}': correct the name, or call create_topic.")
        return topic.encode()

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._handle is None:
            raise ClusterError("This MockCluster is closed: make a new one.")
        function = getattr(self._library, f"rd_kafka_mock_{name}")
        result = function(self._handle, *arguments)
        if function.restype is c_int and result != 0:
            said = self._library.rd_kafka_err2str(result).decode()
            raise ClusterError(f"librdkafka refused {name}: {said}.")
        return result


def _new_client(library: ctypes.CDLL) -> Any:
    """The client that a mock cluster needs for its book-keeping: it connects to nothing and logs errors alone."""
    reason = ctypes.create_string_buffer(512)
    settings = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(settings, b"log_level", b"3", reason, len(reason))
    client = library.rd_kafka_new(_RD_KAFKA_PRODUCER, settings, reason, len(reason))
    if client is None:
        raise ClusterError(f"librdkafka cannot start: {reason.value.decode()}.")
    return client


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (c_void_p, []),
    "rd_kafka_conf_set": (c_int, [c_void_p, c_char_p, c_char_p, c_char_p, c_size_t]),
    "rd_kafka_new": (c_void_p, [c_int, c_void_p, c_char_p, c_size_t]),
    "rd_kafka_destroy": (None, [c_void_p]),
    "rd_kafka_err2str": (c_char_p, [c_int]),
    "rd_kafka_mock_cluster_new": (c_void_p, [c_void_p, c_int]),
    "rd_kafka_mock_cluster_destroy": (None, [c_void_p]),
    "rd_kafka_mock_cluster_bootstraps": (c_char_p, [c_void_p]),
    "rd_kafka_mock_topic_create": (c_int, [c_void_p, c_char_p, c_int, c_int]),
    "rd_kafka_mock_topic_set_error": (None, [c_void_p, c_char_p, c_int]),
    "rd_kafka_mock_partition_set_leader": (c_int, [c_void_p, c_char_p, c_int32, c_int32]),
    "rd_kafka_mock_partition_set_follower": (c_int, [c_void_p, c_char_p, c_int32, c_int32]),
    "rd_kafka_mock_partition_push_leader_response": (c_int, [c_void_p, c_char_p, c_int, c_int32, c_int32]),
    "rd_kafka_mock_partition_delete_records": (c_int, [c_void_p, c_char_p, c_int32, c_int64]),
    "rd_kafka_mock_push_request_errors_array": (None, [c_void_p, c_int16, c_size_t, POINTER(c_int)]),
    # Variadic after these: with the fixed arguments alone declared, ctypes passes the rest as each platform wants it.
    "rd_kafka_mock_partition_push_request_errors": (c_int, [c_void_p, c_char_p, c_int32, c_int16, c_size_t]),
    "rd_kafka_mock_broker_set_down": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_broker_set_up": (c_int, [c_void_p, c_int32]),
    "rd_kafka_mock_broker_set_rtt": (c_int, [c_void_p, c_int32, c_int]),
    "rd_kafka_mock_start_request_tracking": (None, [c_void_p]),
    "rd_kafka_mock_stop_request_tracking": (None, [c_void_p]),
    "rd_kafka_mock_get_requests": (POINTER(c_void_p), [c_void_p, POINTER(c_size_t)]),
    "rd_kafka_mock_request_destroy_array": (None, [POINTER(c_void_p), c_size_t]),
    "rd_kafka_mock_request_id": (c_int32, [c_void_p]),
    "rd_kafka_mock_request_api_key": (c_int16, [c_void_p]),
    "rd_kafka_mock_request_timestamp": (c_int64, [c_void_p]),
}


@cache
def _library() -> ctypes.CDLL:
    """librdkafka as the confluent-kafka wheel brings it, found without importing the package."""
    spec = importlib.util.find_spec("confluent_kafka")
    places = [Path(place).parent for place in (spec.submodule_search_locations or ())] if spec else []
    found = [path for place in places for pattern in _LIBRARIES for path in place.glob(pattern)]
    if not found:
        raise ClusterError(
            "No librdkafka beside confluent_kafka: pip install --only-binary confluent-kafka confluent-kafka "
            "(on Linux or macOS; a build from source has no library of its own)."
        )
    library = ctypes.CDLL(str(found[0]))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library

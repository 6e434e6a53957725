"""`MockCluster`: brokers inside this process that respond to real requests and inject faults; no Java, no download.

The brokers are librdkafka's (`rdkafka_mock.h`), in the library of the confluent-kafka wheel.
"""

from __future__ import annotations

import ctypes
import importlib.util
import socket
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_int, c_int16, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from pyspark_kafka_meta.errors import ClusterError
from pyspark_kafka_meta.extras import missing_extra

NO_BROKER = -1
"""As a leader or follower: none. As the broker of `broker_down`, `broker_up` and `set_rtt_ms`: all brokers."""

_RD_KAFKA_PRODUCER = 0
_LIBRARIES = ("confluent_kafka.libs/librdkafka*.so*", "confluent_kafka/.dylibs/librdkafka*.dylib")


class TrackedRequest(NamedTuple):
    """A request to a mock broker. `timestamp_us` is librdkafka's monotonic clock: only differences have a meaning."""

    broker_id: int
    api_key: int
    timestamp_us: int


class MockCluster:
    """Mock brokers with ids 1 to `brokers`, listening on the loopback address until `close`, or the end of `with`.

    Use plain confluent-kafka at `bootstrap_servers` to write and read. Only `move_leader` moves a leader.

    It shows how a client handles a response, not that real brokers send it. It has no TLS, SASL, transactions, and so
    no exactly-once writes, or offsets by time. An ex-leader refuses a fetch that a real broker may serve. A response
    contains one produced batch at most, and a partition keeps 5 MiB of records. Use `LocalKafka` for all that.

    Methods raise ClusterError if librdkafka refuses the call (for example for an unknown broker), if `create_topic` has
    not created the topic, or if the cluster is closed.
    """

    def __init__(self, brokers: int = 3) -> None:
        if brokers < 1:
            raise ClusterError(f"A MockCluster cannot have {brokers} brokers: give at least 1.")
        self._library = _library()
        self._client = _new_client(self._library)
        self._handle: int | None = self._library.rd_kafka_mock_cluster_new(self._client, brokers)
        self._topics: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the brokers. A second call does nothing."""
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
        """Make `broker_id` the leader, or remove the leader (`NO_BROKER`). Increments the epoch."""
        self._call("partition_set_leader", self._existing(topic), partition, broker_id)

    def set_follower(self, topic: str, partition: int, broker_id: int) -> None:
        """Make `broker_id` the preferred read replica in Fetch responses (KIP-392)."""
        self._call("partition_set_follower", self._existing(topic), partition, broker_id)

    def push_leader_response(self, topic: str, partition: int, broker_id: int, leader_epoch: int) -> None:
        """Set leader and epoch in the next response, right or wrong (Metadata, and KIP-951 hints of Fetch)."""
        self._call("partition_push_leader_response", self._existing(topic), partition, broker_id, leader_epoch)

    def delete_records(self, topic: str, partition: int, offset: int) -> None:
        """Make `offset` the log start offset."""
        self._call("partition_delete_records", self._existing(topic), partition, offset)

    def set_topic_error(self, topic: str, error_code: int) -> None:
        """Set the topic's error in Metadata responses, until it is set to 0."""
        self._call("topic_set_error", self._existing(topic), error_code)

    def push_request_errors(self, api_key: int, *error_codes: int) -> None:
        """Respond to the next requests of this API, at any broker, with these errors in turn; -195 disconnects."""
        errors = (c_int * len(error_codes))(*error_codes)
        self._call("push_request_errors_array", api_key, len(error_codes), errors)

    def push_partition_errors(self, topic: str, partition: int, api_key: int, *error_codes: int) -> None:
        """As `push_request_errors`, for one partition of the request."""
        errors = [c_int(code) for code in error_codes]
        self._call("partition_push_request_errors", self._existing(topic), partition, api_key, len(errors), *errors)

    def broker_down(self, broker_id: int) -> None:
        """Drop the broker's connections and refuse new connections. Leaders do not move."""
        self._call("broker_set_down", broker_id)

    def broker_up(self, broker_id: int) -> None:
        self._call("broker_set_up", broker_id)

    def set_rtt_ms(self, broker_id: int, rtt_ms: int) -> None:
        """Delay every response of the broker."""
        self._call("broker_set_rtt", broker_id, rtt_ms)

    def start_request_tracking(self) -> None:
        """Clear the tracked requests and start tracking."""
        self._call("start_request_tracking")

    def stop_request_tracking(self) -> None:
        """Stop tracking and clear the tracked requests."""
        self._call("stop_request_tracking")

    def requests(self) -> list[TrackedRequest]:
        """The tracked requests, in their order of arrival."""
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

    def _existing(self, topic: str) -> bytes:
        """The name of an existing topic. librdkafka would create a topic with a misspelt name."""
        if self._handle is not None and topic not in self._topics:
            raise ClusterError(f"This MockCluster has no topic '{topic}': correct the name, or call create_topic.")
        return topic.encode()

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._handle is None:
            raise ClusterError("This MockCluster is closed: create a new one.")
        self._wake()
        function = getattr(self._library, f"rd_kafka_mock_{name}")
        result = function(self._handle, *arguments)
        if function.restype is c_int and result != 0:
            error = self._library.rd_kafka_err2str(result).decode()
            raise ClusterError(f"librdkafka refused {name}: {error}.")
        return result

    def _wake(self) -> None:
        """Connect to a broker: without traffic, librdkafka may take a second to notice the next call."""
        servers = self._library.rd_kafka_mock_cluster_bootstraps(self._handle).decode()
        for host, _, port in (server.rpartition(":") for server in servers.split(",")):
            with suppress(OSError):  # a broker that is down
                socket.create_connection((host, int(port))).close()
                return


def _new_client(library: ctypes.CDLL) -> Any:
    """The client that a mock cluster needs: it connects to no broker and logs errors only."""
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
    # Variadic: if only the fixed arguments are declared, ctypes passes the others as each platform requires.
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
    """librdkafka of the confluent-kafka wheel, without an import of the package."""
    spec = importlib.util.find_spec("confluent_kafka")
    folders = [Path(location).parent for location in (spec.submodule_search_locations or ())] if spec else []
    libraries = [path for folder in folders for pattern in _LIBRARIES for path in folder.glob(pattern)]
    if not libraries:
        raise ClusterError(
            f"{missing_extra('MockCluster', 'confluent_kafka')}. A wheel of confluent-kafka is needed, on Linux or "
            "macOS: a build from source has no librdkafka of its own."
        )
    library = ctypes.CDLL(str(libraries[0]))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library

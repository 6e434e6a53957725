"""`CutOffKafka`: brokers that can be cut off from the controller and from each other, and go on serving their clients.

Every node has a listener for each broker, with a proxy in front of it. A broker learns the addresses of the other nodes
over the listeners that are for it, and so reaches them through its own proxies only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import NamedTuple

from pyspark_kafka_meta.model import Address
from pyspark_kafka_meta.testing import LocalKafka
from pyspark_kafka_meta.testing.kafka_config import CONTROLLER_ID, HOST, Properties
from pyspark_kafka_meta.testing.kafka_node import free_ports
from tests.tcp_proxy import Network, TcpProxy


class Link(NamedTuple):
    """The connections that node `source` opens to node `target`."""

    source: int
    target: int

    @property
    def listener(self) -> str:
        """Of `target`. Brokers must not have the name of a controller's listener."""
        return f"{'CONTROLLER' if self.target == CONTROLLER_ID else 'BROKER'}_{self.source}"


class CutOffKafka(LocalKafka):
    """Three brokers. The controller replaces the leaders of a silent broker after 3 s."""

    def __init__(self, stack: ExitStack) -> None:
        """The proxies run as long as `stack`."""
        super().__init__(config={"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"})
        links = [Link(*ends) for ends in product(self.broker_ids, (CONTROLLER_ID, *self.broker_ids))]
        self._proxies = {link: stack.enter_context(TcpProxy()) for link in links}
        for proxy, port in zip(self._proxies.values(), free_ports(len(links)), strict=True):
            proxy.target = Address(HOST, port)

    @contextmanager
    def cut_off(self, broker_id: int) -> Iterator[None]:
        """All packets between the broker and the other nodes are lost inside `with`, and sent again after it."""
        proxies = [proxy for link, proxy in self._proxies.items() if link.count(broker_id) == 1]
        for proxy in proxies:
            proxy.network = Network.HOLDS_ALL
        try:
            yield
        finally:
            for proxy in proxies:
                proxy.network = Network.GOOD

    def _controller_properties(self, folder: Path) -> Properties:
        names = ",".join(link.listener for link in self._proxies if link.target == CONTROLLER_ID)
        listeners = self._listeners(CONTROLLER_ID)
        return {**super()._controller_properties(folder), **listeners, "controller.listener.names": names}

    def _broker_properties(self, broker_id: int, folder: Path) -> Properties:
        to_controller = Link(broker_id, CONTROLLER_ID)
        return {
            **super()._broker_properties(broker_id, folder),
            **self._listeners(broker_id, f"PLAINTEXT://{self.address(broker_id)}"),
            "inter.broker.listener.name": Link(broker_id, broker_id).listener,
            "controller.listener.names": to_controller.listener,
            "controller.quorum.voters": f"{CONTROLLER_ID}@{self._proxies[to_controller].address}",
        }

    def _listeners(self, node_id: int, *of_clients: str) -> Properties:
        own = {link.listener: proxy for link, proxy in self._proxies.items() if link.target == node_id}
        names = {"PLAINTEXT", *(link.listener for link in self._proxies)}
        return {
            "listeners": ",".join([*of_clients, *(f"{name}://{proxy.target}" for name, proxy in own.items())]),
            "advertised.listeners": ",".join(
                [*of_clients, *(f"{name}://{proxy.address}" for name, proxy in own.items())]
            ),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in sorted(names)),
        }

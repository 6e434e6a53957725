"""The page in one browser, its buttons and its templates.

Tables are replaced when they change; buttons stay, so that they keep the focus. Buttons change clusters of the demo's
own. Text from brokers and events is escaped, and shown without control characters.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from pyspark_kafka_meta.model import RefreshReason, TopicPartition
from pyspark_kafka_meta.tools import formatting
from pyspark_kafka_meta.tools.cluster_state import ClusterState
from pyspark_kafka_meta.tools.demo.clusters import COPY, REPLICAS, TOPIC, ChangeableCluster, EmbeddedCluster
from pyspark_kafka_meta.tools.demo.scenes import run_client
from pyspark_kafka_meta.tools.page.caches_view import EVERYTHING, Selection
from pyspark_kafka_meta.tools.page.state_poller import PolledCluster, Snapshot, StatePoller
from pyspark_kafka_meta.tools.page.view_model import polled_view

REFRESH_S = 0.5
PLOTS = {"latencies": "Refresh latency", "recoveries": "Recovery after errors"}
_FOLDER = Path(__file__).parent / "templates"
CSS = (_FOLDER / "page.css").read_text()
Action = Callable[[ClusterState], str]


def _local_time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000).astimezone()


def _shown(value: object) -> object:
    return value if isinstance(value, Markup) else formatting.escaped(str(value))


_TEMPLATES = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, finalize=_shown)
_TEMPLATES.globals.update(text=formatting, local_time=_local_time, selection=EVERYTHING)


def render(name: str, **values: object) -> str:
    """The HTML of one part of the page."""
    return _TEMPLATES.get_template(f"{name}.html").render(values)


class ButtonActions:
    """What the buttons do to one cluster.

    Attributes:
        dead: killed brokers, shared with the view.
        growth: the label of the button for `grow`.
    """

    def __init__(self, cluster: ChangeableCluster, events: Path, dead: set[int]) -> None:
        self.dead = dead
        self.growth = "Add a topic" if isinstance(cluster, EmbeddedCluster) else "Add a partition"
        self._cluster = cluster
        self._events = events

    def move(self, partition: TopicPartition) -> Action:
        def act(state: ClusterState) -> str:
            self._cluster.move_leader(partition, state.leader_of(partition))
            return f"The leader of {partition} moved away from broker {state.leader_of(partition)}."

        return act

    def kill_or_restore(self, broker_id: int) -> Action:
        def act(_: ClusterState) -> str:
            if broker_id in self.dead:
                self._cluster.restore(broker_id)
                self.dead.discard(broker_id)
                return f"Broker {broker_id} runs again."
            self._cluster.kill(broker_id)
            self.dead.add(broker_id)
            return f"Broker {broker_id} was killed."

        return act

    def grow(self, _: ClusterState) -> str:
        return f"{self._cluster.grow()} was added."

    def refresh(self, _: ClusterState) -> str:
        servers = [self._cluster.options["kafka.bootstrap.servers"]]
        run_client(self._cluster, self._events, servers, [RefreshReason.ON_DEMAND])
        return "A client of this page refreshed its cache on demand."


class _Card(NamedTuple):
    item: ui.element
    html: ui.html
    button: TextElement | None


class Page:
    """Args:
    subtitle: names the cluster.
    leaders_title: of the column with the leaders that caches are compared with.
    actions: of the buttons; None for a page that only watches.
    """

    def __init__(self, poller: StatePoller, subtitle: str, leaders_title: str, actions: ButtonActions | None) -> None:
        self._poller = poller
        self._leaders_title = leaders_title
        self._actions = actions
        self._selection = Selection.of(ui.context.client.request.query_params)
        self._shown: Snapshot | None = None
        self._polled: PolledCluster | None = None
        self._brokers: dict[int, _Card] = {}
        self._parts: dict[str, ui.html] = {}
        self._plots: dict[str, tuple[ui.echart, TextElement]] = {}
        self._buttons: list[TextElement] = []
        ui.add_css(CSS)
        tag("h1", "Kafka metadata caches, live")
        tag("p", subtitle).classes("subtitle")
        with ui.element("section").props('aria-label="Figures"'):
            self._part("figures")
        with ui.element("div").classes("grid"):
            with section("lag-plot", "Lag over time"):
                self._plot("lag", "", "plot")
            self._draw_cluster()
            self._draw_tables()
            for name, title in PLOTS.items():
                with section(name, title, "card half"):
                    self._plot(name, "", "plot")
        self.refresh()
        ui.timer(REFRESH_S, self.refresh)

    def refresh(self) -> None:
        """Show the newest snapshot, and the newest values of the cluster."""
        poller, snapshot, polled = self._poller, self._poller.snapshot, self._poller.polled()
        self._result.set_text(poller.trouble or (f"{poller.running} ..." if poller.running else poller.result))
        for button in self._buttons:
            button.props(f"aria-disabled={'true' if poller.running else 'false'}")
        if snapshot is None or (snapshot is self._shown and polled == self._polled):
            return
        before, self._shown, self._polled = self._shown, snapshot, polled
        values = {
            "leaders_title": self._leaders_title,
            "has_query": self._actions is not None,
            "selection": self._selection,
            "polled": polled_view(*polled),
        }
        has_same_caches = before is not None and before.view.caches is snapshot.view.caches
        for name, part in self._parts.items():
            if name != "caches" or not has_same_caches:
                part.set_content(render(name, view=snapshot.view, **values))
        if snapshot is not before:
            self._show_state(snapshot)

    def _show_state(self, snapshot: Snapshot) -> None:
        poller, view = self._poller, snapshot.view
        self._last_event.set_text(view.last_event)
        for broker in view.brokers:
            card = self._brokers.get(broker.node_id) or self._add_broker(broker.node_id)
            card.item.classes(replace="broker dead" if broker.is_alive is False else "broker")
            card.html.set_content(render("broker", broker=broker))
            if card.button is not None:
                verb = "Restore" if broker.node_id in poller.dead else "Kill"
                card.button.set_text(f"{verb} broker {broker.node_id}")
                card.button.classes(replace="act danger" if verb == "Kill" else "act")
        for name, (chart, caption) in self._plots.items():
            plot = snapshot.plots[name]
            chart.set_visibility(not plot.is_empty)
            chart.options.update(plot.options)
            chart.update()
            caption.set_text(plot.summary)

    def _draw_cluster(self) -> None:
        with section("cluster", "Cluster"):
            self._map = ui.element("ul").classes("brokers")
            self._part("cluster")
            if self._actions is not None:
                self._draw_controls(self._actions)
            with ui.element("div").classes("status"):
                tag("b", "Last event")
                self._last_event = tag("span")
                self._result = tag("p").classes("said").props('role="status" aria-live="polite"')

    def _draw_controls(self, actions: ButtonActions) -> None:
        with ui.element("div").classes("controls"):
            with ui.element("div").props('role="group" aria-label="Move a leader"'):
                tag("span", "Move the leader of")
                for topic, number in product((TOPIC, COPY), range(len(REPLICAS))):
                    partition = TopicPartition(topic, number)
                    name = f"Move the leader of {partition}"
                    self._button(str(partition), name, actions.move(partition)).props(f'aria-label="{name}"')
            with ui.element("div").props('role="group" aria-label="More"'):
                self._button(actions.growth, actions.growth, actions.grow)
                self._button("Refresh now", "Refresh now", actions.refresh)

    def _draw_tables(self) -> None:
        with section("caches", "What each cache knows", "card wide" if self._actions else "card"):
            self._part("caches_search")
            self._part("caches")
        lags, transactions = self._poller.polled()
        if lags:
            with section("lag", "Lag by partition", "card narrow" if self._actions else "card"):
                self._part("lag")
        with section("writers", "Writers"):
            self._part("writers")
        if transactions is not None:
            with section("transactions", "Transactions"):
                self._part("transactions")
        with section("events", "Events"):
            self._plot("timeline", "timeline", "plot lanes")
            self._part("events")

    def _add_broker(self, broker_id: int) -> _Card:
        with self._map, ui.element("li").classes("broker") as item:
            html, button = ui.html(), None
            if self._actions is not None:
                action = self._actions.kill_or_restore(broker_id)
                button = self._button("", f"Broker {broker_id}", action)
        self._brokers[broker_id] = _Card(item, html, button)
        return self._brokers[broker_id]

    def _button(self, text: str, name: str, action: Action) -> TextElement:
        drawn = button(text, partial(self._submit, name, action))
        self._buttons.append(drawn)
        return drawn

    def _submit(self, name: str, action: Action) -> None:
        self._poller.submit(name, action)
        self.refresh()

    def _part(self, name: str) -> None:
        self._parts[name] = ui.html()

    def _plot(self, name: str, classes: str, plot: str) -> None:
        self._plots[name] = figure(name, plot, classes)


def tag(name: str, text: str = "") -> TextElement:
    """An HTML element."""
    return TextElement(tag=name, text=text)


def button(text: str, on_click: Callable[[], None]) -> TextElement:
    return tag("button", text).classes("act").props('type="button"').on("click", on_click)


def figure(name: str, plot: str, classes: str = "") -> tuple[ui.echart, TextElement]:
    """An empty plot and its caption.

    Args:
        plot: classes of the plot itself.
    """
    with ui.element("figure").classes(classes):
        caption = tag("figcaption").props(f'id="{name}-summary"')
        chart = ui.echart({"series": []}, renderer="svg").classes(plot)
        chart.props(f'role="img" aria-labelledby="{name}-summary"')
    return chart, caption


def section(name: str, title: str, classes: str = "card") -> ui.element:
    """A card with a heading."""
    drawn = ui.element("section").classes(classes).props(f'aria-labelledby="{name}-title"')
    with drawn:
        tag("h2", title).props(f'id="{name}-title"')
    return drawn

"""The `kafkameta` command; each subcommand imports what it needs when it runs."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.events.event import REASONS, Role
from pyspark_kafka_meta.extras import missing_extra
from pyspark_kafka_meta.options import DECISIONS_TOPIC, PARTS, ProducerOptions
from pyspark_kafka_meta.tools.cli.parameters import (
    OF_QUERIES,
    OF_WRITES,
    READING,
    AllApplications,
    Application,
    Checkpoints,
    Config,
    Count,
    DecisionsTopic,
    EventsPath,
    EventsTopic,
    Host,
    IncidentsSince,
    JsonOrPipe,
    Options,
    Port,
    QueryOptions,
    Servers,
    StartedCluster,
    StoppedCheckpoint,
    TimeoutMs,
    ToConfig,
    ToOptions,
    Until,
    WatchSeconds,
    check_checkpoints,
    cluster_options,
    events_options,
    flag,
    member,
    of_application,
    period_ms,
    since_ms,
    split_pair,
    within,
)
from pyspark_kafka_meta.tools.console import (
    WARNINGS,
    Tables,
    handle_signals,
    note,
    print_lines,
    reporting,
    show_looks,
    table_console,
    timeout_options,
)
from pyspark_kafka_meta.tools.doctor.machine_checks import DISTRIBUTION, version_of
from pyspark_kafka_meta.tools.exporter import HOST, INTERVAL_S, INTERVALS_S, PORT
from pyspark_kafka_meta.tools.same_records import Way
from pyspark_kafka_meta.value_checks import INT32_MAX

app = typer.Typer(
    name="kafkameta",
    help="Inspect Kafka clusters and the metadata caches of the kafkameta source.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{DISTRIBUTION} {version_of(DISTRIBUTION) or 'not installed by pip'}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, metavar="", help="Print the version and exit."
        ),
    ] = False,
) -> None:
    logging.getLogger("pyspark_kafka_meta").addHandler(WARNINGS)  # a second time has no effect


@app.command()
def metadata(
    bootstrap_servers: Servers = None,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only this topic; may be given several times.")
    ] = None,
    refresh: Annotated[bool, flag("--refresh", "Also refresh a cache and show its events.")] = False,
    watch: WatchSeconds = None,
    count: Count = None,
    timeout_ms: TimeoutMs = 10_000,
    as_json: JsonOrPipe = False,
    option: Options = None,
    config: Config = None,
) -> None:
    """Show brokers, topics and the leader of each partition."""
    from pyspark_kafka_meta.options import ClientOptions
    from pyspark_kafka_meta.tools.cli.cluster import METADATA, OwnCache, look_at
    from pyspark_kafka_meta.tools.console import check_topics

    console = table_console(as_json)
    with reporting(until_ended=watch is not None and count is None), ExitStack() as opened:
        cluster = cluster_options(bootstrap_servers, option, config)
        client = ClientOptions.parse({**cluster, **timeout_options(timeout_ms)})
        own_cache = opened.enter_context(closing(OwnCache(client))) if refresh else None
        seen = show_looks(lambda: look_at(client, topic, own_cache), METADATA, console, watch, count)
        if seen is None:
            raise typer.Exit(1)
        if topic and watch is None:
            check_topics(seen.description.response)


@app.command()
def read(
    topic: Annotated[str, typer.Argument(metavar="TOPIC,...", help="Topics, separated by commas.")],
    last: Annotated[
        int | None,
        typer.Option(callback=within(1, INT32_MAX), metavar="N", help="Only the newest N rows; 10 without a start."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="10m", help="Start so long ago, or at a time such as 2030-01-31T12:00.")
    ] = None,
    follow: Annotated[bool, flag("--follow", "Keep printing new rows until Ctrl-C.")] = False,
    bootstrap_servers: Servers = None,
    timeout_ms: TimeoutMs = 10_000,
    as_json: JsonOrPipe = False,
    option: QueryOptions = None,
    config: Config = None,
) -> None:
    """Show the records of a topic, as a query reads them.

    Keys and values are columns with `--option valueFormat=avro` or another format. Without a format they are text; in
    JSON, bytes that are no UTF-8 are an object with their Base64. `--option startingOffsets=earliest` shows all.
    """
    from pyspark_kafka_meta.tools.cli.read import read_rows, rows_table

    console = table_console(as_json)
    show = print_lines if console is None else Tables(console, rows_table)
    with reporting(until_ended=follow):
        given = {**cluster_options(bootstrap_servers, option, config, PARTS), **timeout_options(timeout_ms)}
        given["subscribe"] = topic
        if since is not None:
            begin_ms = str(since_ms(since, int(time.time() * 1000)))
            given |= {"startingTimestamp": begin_ms, "startingOffsetsByTimestampStrategy": "latest"}
        given = given if "changes" in given else {"includeHeaders": "true", **given}
        with closing(read_rows(given, last, follow)) as chunks:
            for rows in chunks:
                show(rows)


@app.command()
def events(
    path: EventsPath = None,
    topic: EventsTopic = None,
    bootstrap_servers: Servers = None,
    reason: Annotated[
        list[str] | None,
        typer.Option(parser=member(REASONS), metavar="REASON", help="Only this reason; may be given several times."),
    ] = None,
    role: Annotated[Role | None, typer.Option(parser=member(Role), metavar="ROLE", help="Only this role.")] = None,
    application: Application = None,
    all_applications: AllApplications = False,
    since: Annotated[str | None, typer.Option(metavar="10m", help="Only events newer than this.")] = None,
    last: Annotated[
        int | None,
        typer.Option(callback=within(1, INT32_MAX), metavar="N", help="Only the newest N events; 1000 by default."),
    ] = None,
    follow: Annotated[bool, flag("--follow", "Keep printing new events until Ctrl-C.")] = False,
    as_json: JsonOrPipe = False,
    option: Options = None,
    config: Config = None,
) -> None:
    """Show refresh events, newest last.

    Events are read from --path, or from --events-topic at --bootstrap-servers, by default from the default folders of
    this machine, for the latest application.
    """
    from pyspark_kafka_meta.tables.caches_from_events import EventRow
    from pyspark_kafka_meta.tools.cli.events import EventFilter, follow_events, show_events
    from pyspark_kafka_meta.tools.event_sources import open_events
    from pyspark_kafka_meta.tools.formatting import events_table

    console = table_console(as_json)
    show = print_lines if console is None else Tables[EventRow](console, lambda rows, _: events_table(rows))
    with reporting(until_ended=follow):
        earliest_ms = 0 if since is None else since_ms(since, int(time.time() * 1000))
        given = events_options(path, topic, cluster_options(bootstrap_servers, option, config))
        given, application = of_application(given, application)
        wanted = EventFilter(reason or (), role, earliest_ms, application_id=application)
        with closing(open_events(given, not follow, all_applications or application is not None)) as source:
            show_events(source, wanted, show, last)
            if follow:
                follow_events(source, wanted, show)


@app.command()
def caches(
    path: EventsPath = None,
    topic: EventsTopic = None,
    bootstrap_servers: Servers = None,
    stale: Annotated[
        bool, flag("--stale", "Only entries older than the state of the cluster at --bootstrap-servers.")
    ] = False,
    application: Application = None,
    all_applications: AllApplications = False,
    since: Annotated[str, typer.Option(metavar="10m", help="Only caches with an event newer than this.")] = "10m",
    as_json: JsonOrPipe = False,
    option: Options = None,
    config: Config = None,
) -> None:
    """Show the leader of each partition in each metadata cache.

    The caches are computed from events: from --path, or from --events-topic at --bootstrap-servers, by default from
    the default folders of this machine, for the latest application. Closed caches are omitted. A cache that was killed
    on another machine is shown for the time of --since.
    """
    from pyspark_kafka_meta.options import ClientOptions
    from pyspark_kafka_meta.tools.cli.events import known_caches, show_caches, show_stale
    from pyspark_kafka_meta.tools.event_sources import open_events

    console, now_ms = table_console(as_json), int(time.time() * 1000)
    with reporting():
        cluster = cluster_options(bootstrap_servers, option, config)
        client = ClientOptions.parse(cluster) if stale else None
        given = events_options(path, topic, cluster, uses_brokers=stale, others=" or --stale")
        given, application = of_application(given, application)
        with closing(open_events(given, True, all_applications or application is not None)) as source:
            known = known_caches(source, since_ms(since, now_ms), now_ms, application)
        if client is None:
            show_caches(known, console)
        elif not show_stale(known, client, console):
            raise typer.Exit(1)


@app.command()
def incidents(
    path: EventsPath = None,
    topic: EventsTopic = None,
    bootstrap_servers: Servers = None,
    application: Application = None,
    all_applications: AllApplications = False,
    since: IncidentsSince = None,
    until: Until = None,
    as_json: JsonOrPipe = False,
    option: Options = None,
    config: Config = None,
) -> None:
    """Show leader changes that belong together: a broker's death, a rolling restart, an election.

    Computed from the events that the metadata caches wrote meanwhile, also when all of them have ended. Events are
    read from --path, or from --events-topic at --bootstrap-servers, by default from the default folders of this
    machine, for the latest application.
    """
    from pyspark_kafka_meta.tables.leader_changes import leader_change_rows
    from pyspark_kafka_meta.tools.cli.events import EventFilter
    from pyspark_kafka_meta.tools.event_sources import open_events
    from pyspark_kafka_meta.tools.incidents import INCIDENTS, find_incidents

    console = table_console(as_json)
    with reporting():
        earliest_ms, latest_ms = period_ms(since, until, now_ms := int(time.time() * 1000))
        given = events_options(path, topic, cluster_options(bootstrap_servers, option, config))
        given, application = of_application(given, application)
        with closing(open_events(given, True, all_applications or application is not None)) as source:
            wanted = EventFilter(until_ms=latest_ms, application_id=application)
            found = find_incidents(leader_change_rows(filter(wanted.accepts, source.read()), now_ms))
        recent = [each for each, _ in found if each.ended.timestamp() * 1000 >= earliest_ms]
        if not recent:
            note(
                "no leader changed since then: an earlier --since goes back further"
                if found
                else "no leader changed in these events"
            )
            return
        INCIDENTS.show(recent, console)


@app.command()
def transactions(
    bootstrap_servers: Servers = None,
    settle: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Commit what the query with this kafka.transactional.id has decided, abort its other transactions.",
        ),
    ] = None,
    yes: Annotated[bool, flag("--yes", "Do not ask before --settle.")] = False,
    watch: WatchSeconds = None,
    count: Count = None,
    decisions_topic: DecisionsTopic = None,
    timeout_ms: TimeoutMs = 10_000,
    as_json: JsonOrPipe = False,
    option: Options = None,
    config: Config = None,
) -> None:
    """Show open transactions, which read_committed readers wait for.

    --settle ends those of a query that will not come back. Before Kafka 3.0, brokers cannot list transactions.
    """
    from pyspark_kafka_meta.options import ClusterOptions
    from pyspark_kafka_meta.tables.cluster_query import query_transactions
    from pyspark_kafka_meta.tools.cli.transactions import TRANSACTIONS
    from pyspark_kafka_meta.tools.cli.transactions import settle as settle_sink
    from pyspark_kafka_meta.tools.doctor.topic_checks import writing_query

    console = table_console(as_json)
    with reporting(until_ended=watch is not None and count is None):
        if settle is not None and (watch is not None or count is not None):
            raise OptionError("--settle excludes --watch and --count")
        cluster = {**cluster_options(bootstrap_servers, option, config), **timeout_options(timeout_ms)}
        if decisions_topic is not None:
            cluster["decisionsTopic"] = decisions_topic
        if settle is not None:
            sink = writing_query({**cluster, "kafka.transactional.id": settle}, "any")[1]
            is_named = "decisionsTopic" in cluster
            is_done = settle_sink(sink, lambda text: yes or typer.confirm(text), console, is_topic_given=is_named)
        else:
            given = ClusterOptions.parse(cluster)
            seen = show_looks(lambda: query_transactions(given), TRANSACTIONS, console, watch, count)
            is_done = seen is not None
        if not is_done:
            raise typer.Exit(1)


@app.command()
def replay(
    letters: Annotated[str, typer.Argument(metavar="LETTERS", help="The deadLetterTopic of a query.")],
    to: Annotated[str, typer.Option(metavar="TOPIC", help="Topic to which the records are sent.")],
    bootstrap_servers: Servers = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only records that were in this topic.")] = None,
    cause: Annotated[str, typer.Option(metavar="WORDS", help="Only letters whose cause has these words.")] = "",
    since: Annotated[str | None, typer.Option(metavar="10m", help="Only letters newer than this.")] = None,
    yes: Annotated[bool, flag("--yes", "Do not ask before the records are sent.")] = False,
    as_json: JsonOrPipe = False,
    option: Options = None,
    config: Config = None,
) -> None:
    """Send the records of dead letters again.

    Shows the letters that are there now, by topic and cause, and asks. Each record is sent once, as it was, with a
    header kafkameta.replay that names its first topic, partition and offset. A second replay sends it again.
    """
    from pyspark_kafka_meta.tools.cli.replay import LetterFilter
    from pyspark_kafka_meta.tools.cli.replay import replay as replay_letters

    with reporting():
        earliest_ms = 0 if since is None else since_ms(since, int(time.time() * 1000))
        cluster = cluster_options(bootstrap_servers, option, config, (*READING, ProducerOptions))
        wanted = LetterFilter(topic, cause, earliest_ms)
        is_done = replay_letters(
            cluster, letters, wanted, to, lambda question: yes or typer.confirm(question), table_console(as_json)
        )
        if not is_done:
            raise typer.Exit(1)


@app.command()
def lag(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="checkpointLocation of a query: a path, or a URI of pyarrow.")
    ],
    bootstrap_servers: Servers = None,
    watch: WatchSeconds = None,
    count: Count = None,
    timeout_ms: TimeoutMs = 10_000,
    as_json: JsonOrPipe = False,
    option: Options = None,
    config: Config = None,
) -> None:
    """Show how many records and seconds a streaming query is behind.

    A micro-batch counts as read once the checkpoint records it as finished. The seconds are the age of the next
    unread record, by its timestamp.
    """
    from pyspark_kafka_meta.tools.checkpoints import checkpoint_lag
    from pyspark_kafka_meta.tools.cli.cluster import LAG

    console = table_console(as_json)
    with reporting(until_ended=watch is not None and count is None):
        cluster = {**cluster_options(bootstrap_servers, option, config), **timeout_options(timeout_ms)}
        if show_looks(lambda: checkpoint_lag(checkpoint, cluster), LAG, console, watch, count) is None:
            raise typer.Exit(1)


@app.command()
def exporter(
    path: EventsPath = None,
    topic: EventsTopic = None,
    bootstrap_servers: Servers = None,
    checkpoint: Checkpoints = None,
    per_partition: Annotated[bool, flag("--per-partition", "Also export the lag of each partition.")] = False,
    application: Application = None,
    all_applications: AllApplications = False,
    decisions_topic: DecisionsTopic = None,
    interval: Annotated[
        float,
        typer.Option(callback=within(*INTERVALS_S), metavar="SECONDS", help="Poll events and cluster every SECONDS."),
    ] = INTERVAL_S,
    host: Host = HOST,
    port: Port = PORT,
    option: Options = None,
    config: Config = None,
) -> None:
    """Serve metrics for Prometheus.

    Events are read from --path, or from --events-topic at --bootstrap-servers, by default from the default folders of
    this machine, for the latest application and later ones. The cluster at --bootstrap-servers shows which caches are
    stale, open transactions, and the lag of each --checkpoint.
    """
    from pyspark_kafka_meta.tools.event_sources import open_events
    from pyspark_kafka_meta.tools.exporter.server import Poller, PollTargets, serve

    with reporting(until_ended=True):
        cluster = cluster_options(bootstrap_servers, option, config)
        check_checkpoints(checkpoint, cluster)
        given, application = of_application(events_options(path, topic, cluster, uses_brokers=True), application)
        every_application = all_applications or application is not None
        with closing(open_events(given, False, every_application, skips_unreadable=True)) as source:
            targets = PollTargets(
                events=source,
                application_id=application,
                cluster=cluster,
                decisions_topic=DECISIONS_TOPIC if decisions_topic is None else decisions_topic,
                checkpoints=checkpoint or (),
                per_partition=per_partition,
            )
            handle_signals()
            poller = Poller(targets, interval)
            with closing(serve(poller, host, port)) as server, poller:
                typer.echo(server.url)
                threading.Event().wait()


@app.command()
def doctor(
    bootstrap_servers: Servers = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="A topic to read, or with --write to write; may be given several times."),
    ] = None,
    write: Annotated[
        bool, flag("--write", "Also check that each --topic can be written. No record is written.")
    ] = False,
    executors: Annotated[bool, flag("--executors", "Start Spark and check its executors.")] = False,
    path: Annotated[
        str | None,
        typer.Option("--path", metavar="FOLDER", help="With --executors: check that they share this eventsPath."),
    ] = None,
    timeout_ms: TimeoutMs = 10_000,
    as_json: JsonOrPipe = False,
    option: Options = None,
    config: Config = None,
) -> None:
    """Check this machine, brokers, topics and executors, and show how to fix problems.

    Check --topic as a query reads it, and with --write as a query writes it, with the query's options of brokers, typed
    values, the schema registry and changes.
    docs/troubleshooting.md has the errors of queries.
    """
    from pyspark_kafka_meta.tools.doctor.run_checks import run_checks, show_findings

    with reporting():
        cluster = cluster_options(bootstrap_servers, option, config, OF_WRITES if write else OF_QUERIES)
        if topic and not cluster:
            raise OptionError("--topic needs --bootstrap-servers")
        if write and not topic:
            raise OptionError("--write needs --topic")
        if path is not None and not executors:
            raise OptionError("--path needs --executors")
        if any(name.startswith("kafka.") for name in cluster):
            cluster |= timeout_options(timeout_ms)
        if not show_findings(run_checks(cluster, topic or (), write, executors, path), table_console(as_json)):
            raise typer.Exit(1)


@app.command()
def demo(
    cluster: StartedCluster = None,
    bootstrap_servers: Servers = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Topic to read at --bootstrap-servers.")] = None,
    feed: Annotated[bool, flag("--feed", "Also write records to --topic.")] = False,
    whole: Annotated[bool, flag("--all", "Play all scenes, not only the first look.")] = False,
    interactive: Annotated[bool, flag("--interactive", "Wait for Enter before each scene.")] = False,
    option: Options = None,
    config: Config = None,
) -> None:
    """Show how the caches of two executors follow the leaders.

    At --bootstrap-servers, only scenes that change nothing are played.
    """
    from rich.console import Console

    from pyspark_kafka_meta.tools.demo.clusters import UserCluster
    from pyspark_kafka_meta.tools.demo.runner import own_cluster, run_demo

    console = Console()
    handle_signals()
    with reporting(), ExitStack() as opened:
        check_pyspark()
        yours = cluster_options(bootstrap_servers, option, config)
        if yours and cluster is not None:
            raise OptionError("--cluster and --bootstrap-servers exclude each other")
        if (topic is None) == ("kafka.bootstrap.servers" in yours) or (topic is None and (feed or yours)):
            raise OptionError(
                "--bootstrap-servers and --topic need each other; --feed, --option and --config need both"
            )
        if topic is not None:
            seen = run_demo(UserCluster(yours, topic), console, feed, interactive, whole)
        else:
            seen = run_demo(opened.enter_context(own_cluster(cluster, console)), console, True, interactive, whole)
        if not seen:
            raise typer.Exit(1)


@app.command()
def page(
    cluster: StartedCluster = None,
    path: EventsPath = None,
    topic: EventsTopic = None,
    bootstrap_servers: Servers = None,
    checkpoint: Checkpoints = None,
    decisions_topic: DecisionsTopic = None,
    host: Host = HOST,
    port: Port = 8_080,
    open_browser: Annotated[bool, flag("--open", "Also open a browser.")] = False,
    since: IncidentsSince = None,
    until: Until = None,
    option: Options = None,
    config: Config = None,
) -> None:
    """Show the demo, or your own queries, in a browser.

    Your events are read from --path, or from --events-topic at --bootstrap-servers. The cluster at --bootstrap-servers
    shows which caches are stale, open transactions, and the lag of each --checkpoint. With --since or --until the page
    shows the past: the incidents, and of each a time line to move and play.
    """
    with reporting(until_ended=True):
        if find_spec("nicegui") is None:
            raise OptionError(missing_extra("the page", "nicegui"))
        from pyspark_kafka_meta.tools.page.server import PageAddress, serve_demo, serve_events, serve_past

        yours = cluster_options(bootstrap_servers, option, config)
        check_checkpoints(checkpoint, yours)
        at = PageAddress(host, port, open_browser)
        is_past = since is not None or until is not None
        if path is None and topic is None:
            if yours or is_past:
                names = "--since and --until" if is_past else "--bootstrap-servers, --option and --config"
                raise OptionError(f"{names} need --path or --events-topic")
            check_pyspark()
            serve_demo(cluster, at)
        elif cluster is not None:
            raise OptionError("--cluster excludes --path and --events-topic")
        elif is_past:
            if checkpoint or decisions_topic is not None:
                raise OptionError(
                    "--checkpoint and --decisions-topic show lag and transactions of now: leave them out, or leave out "
                    "--since and --until"
                )
            earliest_ms, latest_ms = period_ms(since, until, int(time.time() * 1000))
            serve_past(events_options(path, topic, yours), earliest_ms, latest_ms, at)
        else:
            given = events_options(path, topic, yours, uses_brokers=True)
            decisions = DECISIONS_TOPIC if decisions_topic is None else decisions_topic
            serve_events(given, yours, checkpoint or (), decisions, at)


def check_pyspark() -> None:
    """Raises OptionError: no pyspark is installed, which the demo's query needs."""
    if find_spec("pyspark") is None:
        raise OptionError(missing_extra("the demo", "pyspark"))


@app.command()
def migrate_checkpoint(
    checkpoint: StoppedCheckpoint,
    write: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a checkpoint for kafkameta to this folder.")
    ] = None,
) -> None:
    """Continue a query of Spark's Kafka source: print its startingOffsets."""
    from pyspark_kafka_meta.tools.checkpoints import starting_offsets, write_checkpoint

    handle_signals()  # removes an incomplete copy
    with reporting():
        if write is not None:
            write_checkpoint(checkpoint, write)
            typer.echo(f"wrote {write}")
            return
        found, pending = starting_offsets(checkpoint)
    typer.echo("\n".join(found))
    if pending is not None:
        note(
            f"batch {pending} was planned but not committed: with these offsets it is read again. If the sink may have "
            "it already, use --write, which keeps the batch and its number"
        )


@app.command()
def move_checkpoint(
    checkpoint: StoppedCheckpoint,
    to: Annotated[str | None, typer.Option(metavar="HOST:PORT,...", help="Brokers of the other cluster.")] = None,
    bootstrap_servers: Servers = None,
    by: Annotated[
        Way,
        typer.Option(
            parser=member(Way),
            metavar="WAY",
            help="How to find positions: offsets, if they are equal in both clusters, the default; timestamps; or "
            "offset-syncs of MirrorMaker 2.",
            show_default=False,
        ),
    ] = Way.OFFSETS,
    offset_syncs_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Of --by offset-syncs, such as mm2-offset-syncs.dr.internal.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=OTHER",
            help="A topic and its name in the other cluster; may be given several times, * for all, as in *=source.*.",
        ),
    ] = None,
    unproved: Annotated[
        bool,
        flag("--unproved", "Go on with positions that are not known to be right; needed without --bootstrap-servers."),
    ] = False,
    write: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the new checkpoint to this folder.")
    ] = None,
    timeout_ms: TimeoutMs = 10_000,
    as_json: JsonOrPipe = False,
    option: Options = None,
    config: Config = None,
    to_option: ToOptions = None,
    to_config: ToConfig = None,
) -> None:
    """Continue a query at another cluster with copies of its topics: show its offsets there.

    The records before and after each position are compared in both clusters, the first one at --bootstrap-servers.
    Without --write, nothing is written.
    """
    from pyspark_kafka_meta.tools.cli.cluster import MOVED
    from pyspark_kafka_meta.tools.move_checkpoint import plan_move

    handle_signals()
    with reporting():
        first = cluster_options(bootstrap_servers, option, config)
        other = cluster_options(to, to_option, to_config)
        if "kafka.bootstrap.servers" not in other:
            raise OptionError("give --to, or a --to-config that names the brokers of the other cluster")
        try:
            names = dict(map(split_pair, topic or ()))
        except ValueError:
            raise OptionError("--topic must be NAME=OTHER") from None
        timeouts = timeout_options(timeout_ms)
        move = plan_move(
            checkpoint, {**first, **timeouts} if first else None, {**other, **timeouts}, names, by, offset_syncs_topic
        )
        MOVED.show(move, table_console(as_json))
        move.check(unproved)
        if write is None:
            note("nothing is written without --write FOLDER")
            return
        move.write(write)
        typer.echo(f"wrote {write}")

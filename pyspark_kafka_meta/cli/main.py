"""The `kafkameta` command; each subcommand imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from pyspark_kafka_meta.errors import KafkaMetaError

app = typer.Typer(
    name="kafkameta",
    help="Look at Kafka clusters, and at what the kafkameta source of Spark knows of them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def metadata(
    bootstrap_servers: Annotated[str, typer.Option(help="Brokers to ask, as host:port between commas.")],
    topic: Annotated[list[str] | None, typer.Option(help="Only this topic; may be given several times.")] = None,
    timeout_ms: Annotated[int, typer.Option(min=1, help="How long all brokers together may take to answer.")] = 10_000,
) -> None:
    """Ask one broker, learn them all: brokers, topics, and the leader of each partition."""
    from pyspark_kafka_meta.cli.metadata import show_metadata

    try:
        show_metadata(bootstrap_servers, topic, timeout_ms)
    except KafkaMetaError as error:
        typer.secho(f"kafkameta: {error}", err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from None


@app.command()
def demo(
    seconds: Annotated[int, typer.Option(min=4, help="How long the stream runs.")] = 16,
) -> None:
    """Move a leader under a running stream on embedded brokers, and see what the caches did."""
    from pyspark_kafka_meta.cli.demo import run_demo

    run_demo(seconds)

"""The `kafkameta` command; each subcommand imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
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


@app.command()
def migrate_checkpoint(
    checkpoint: Annotated[Path, typer.Argument(help="checkpointLocation of a stopped query, a local folder.")],
    write: Annotated[Path | None, typer.Option(help="Make a checkpoint for kafkameta here, state included.")] = None,
) -> None:
    """Go on where a query on Spark's own Kafka source stopped: print its startingOffsets, one line a source."""
    from pyspark_kafka_meta.cli.migrate import starting_offsets, write_checkpoint

    try:
        found, pending = starting_offsets(checkpoint)
        if write is not None:
            write_checkpoint(checkpoint, write)
    except KafkaMetaError as error:
        typer.secho(f"kafkameta: {error}", err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from None
    typer.echo("\n".join(found))
    if pending is not None and write is None:
        typer.echo(
            f"kafkameta: batch {pending} was planned and is not committed: with these offsets it is read again. If the "
            "sink may hold it already, use --write, which keeps the batch and its number",
            err=True,
        )

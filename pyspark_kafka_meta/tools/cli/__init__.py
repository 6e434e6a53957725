"""The `kafkameta` command: `main` has its subcommands, the other modules what they print."""


def run() -> None:
    """Run the command. Without the packages of an extra that it needs it says so in one line."""
    from pyspark_kafka_meta.extras import EXTRAS, missing_extra

    try:
        from pyspark_kafka_meta.tools.cli.main import app

        app()
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in EXTRAS:
            raise
        raise SystemExit(f"kafkameta: {missing_extra('this command', package)}") from None

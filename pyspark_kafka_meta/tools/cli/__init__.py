"""The `kafkameta` command."""

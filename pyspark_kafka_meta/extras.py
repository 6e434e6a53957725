"""The extras of this distribution: which installs which optional package, and what to say without it."""

from __future__ import annotations

EXTRAS = {
    "pyspark": "spark",
    "rich": "cli",
    "typer": "cli",
    "confluent_kafka": "testing",
    "cryptography": "stores",
    "gssapi": "kerberos",
    "authlib": "oauth",
    "aws_msk_iam_sasl_signer": "aws",
    "nicegui": "page",
    "prometheus_client": "exporter",
    "opentelemetry": "otel",
    "openlineage": "openlineage",
}
"""The extra of this distribution that installs each optional package, by the name that it is imported with."""


def missing_extra(feature: str, package: str) -> str:
    """The sentence for a feature whose package is not installed."""
    return f"{feature} needs a missing package: {install_command(package)}"


def install_command(package: str) -> str:
    """How to install a package of `EXTRAS`."""
    return f"pip install 'pyspark-kafka-meta[{EXTRAS[package]}]'"

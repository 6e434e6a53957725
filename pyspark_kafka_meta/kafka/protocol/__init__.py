"""Kafka's protocol: requests and responses, frames, error codes. The only importer of the protocol library; no
socket."""

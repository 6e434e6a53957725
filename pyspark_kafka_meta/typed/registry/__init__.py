"""A client of schema registries with Confluent's API, and the schemas that a process knows."""

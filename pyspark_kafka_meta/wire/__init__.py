"""The network: connections to brokers and the only importer of the protocol library."""

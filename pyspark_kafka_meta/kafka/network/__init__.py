"""Requests to brokers over connections: sockets, TLS, SASL, requests in flight."""

"""Secured connections: `stores` reads keys and certificates, `tls` encrypts, `login` and `sasl` log in."""

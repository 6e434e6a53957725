"""Secured connections: `key_stores` reads certificates, `tls` encrypts, `sasl_login` and `oauth_tokens` log in."""

"""Copies that go from site to site, and not through the driver: one stream of TLS, with certificates that serve once."""

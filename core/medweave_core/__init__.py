"""Contracts, errors, documents and run history that steps, connectors and driver share. Imports none of them."""

__version__ = "0.1.0"

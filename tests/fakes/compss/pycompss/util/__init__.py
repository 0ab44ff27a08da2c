"""Internals, not for programs."""

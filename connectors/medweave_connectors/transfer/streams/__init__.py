"""Streams between this machine and sites: what one carries, its encoding, its commands."""

"""Binding of a workflow's roles to sites, and data rules."""

"""Waiting for pods: states, readiness, deadlines and messages."""

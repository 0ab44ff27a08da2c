"""The event log of a run: its event types, and reading the history of a run from it."""

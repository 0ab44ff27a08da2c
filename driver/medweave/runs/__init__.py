"""Start, follow, list, explain, cancel and clean up runs."""

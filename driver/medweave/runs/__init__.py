"""Commands on runs: start, resume, follow, list, explain, cancel, purge and clean."""

"""The deterministic part of the report: equal inputs give equal bytes, wherever and whenever the steps ran."""

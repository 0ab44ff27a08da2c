"""The sections of the report about a classification."""

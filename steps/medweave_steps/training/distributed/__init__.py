"""Ranks of a training: launch, agreement, averaging, failures."""

"""Predicted classes against the known ones."""

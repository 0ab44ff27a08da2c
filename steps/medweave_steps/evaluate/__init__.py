"""Delivered masks against the ground truth, on the grid of the source."""

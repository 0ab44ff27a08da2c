"""Grad-CAM maps of classifications on the source grid, their mass per region, and their sanity check."""

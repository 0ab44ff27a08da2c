"""Metrics of masks on one grid: overlap, surfaces, lesions, and confidence intervals."""

"""Figures of merit for masks on one grid: overlap, surfaces, lesions, and how sure one can be of them."""

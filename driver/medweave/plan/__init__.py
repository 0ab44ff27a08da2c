"""The plan of a run: placement, routes, sizes, times and cost."""

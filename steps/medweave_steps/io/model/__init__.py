"""Model folders, networks and exchange formats."""

"""NIfTI volumes and the masks that belong to them."""

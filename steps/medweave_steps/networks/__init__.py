"""Networks of papers that MONAI does not have, under names that a model card may give.

What is known of them without torch is here.
"""

FILTERS = (8, 16, 32, 64)
POOLINGS = len(FILTERS) - 1
GROUPS = {"as_described": 8, "as_published": 19}
"""Of DistMIS' group normalisation: of channels, and of voxels along the depth (152, 76, 38 and 19 are multiples of 19)."""

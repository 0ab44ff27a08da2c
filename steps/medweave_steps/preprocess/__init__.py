"""From source volumes to the network's grid: oriented, resampled, cropped to the lungs, split by patient."""

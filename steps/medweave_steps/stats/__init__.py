"""`medweave-step stats`: compare groups of measurements, such as repeated runs or models on the same patients."""

"""Training data: patches, volumes, batches."""

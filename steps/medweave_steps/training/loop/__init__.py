"""The training loop: optimizer steps, validation, checkpoints, delivery of the model."""

"""What every verb that trains shares: patches, loss, the optimizer's step, validation, curves, and ranks over nodes."""

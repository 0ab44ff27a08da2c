"""What every verb that trains shares: patches, loss, the optimiser's step, validation, curves, and ranks over nodes."""

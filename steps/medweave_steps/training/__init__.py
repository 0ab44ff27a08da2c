"""Common parts of the verbs that train: patches, loss, the optimizer's step, validation, curves, and ranks over nodes."""

"""StreamFlow's data manager, transfer steps and remote paths, extended."""

"""StreamFlow's scheduler, binding filter, policy and run folders, extended."""

"""A run that is followed by its event log: the log is folded into a state, and what people see is made of that state alone."""

"""Direct copies between two sites over TLS."""

"""A run as a Workflow Run RO-Crate, Provenance profile: what ran, in which order, with what, by content and without the data."""

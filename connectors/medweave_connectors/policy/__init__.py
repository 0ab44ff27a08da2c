"""Data classes, residency rules and pseudonyms."""

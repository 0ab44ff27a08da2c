"""One package per kind of site."""

"""Bring your own model: a local MONAI Bundle with weights becomes a model folder."""

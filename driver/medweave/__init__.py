"""The `medweave` command on the laptop."""

__version__ = "0.1.0"

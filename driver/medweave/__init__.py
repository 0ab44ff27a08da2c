"""The `medweave` command on the laptop."""

__version__ = "0.1.0"
DRIVER_TYPE = "medweave.local"  # deployments of this type are on the machine that drives the run

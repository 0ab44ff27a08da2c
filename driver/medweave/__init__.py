"""The `medweave` command on the laptop."""

from medweave_core import __version__ as __version__

DRIVER_TYPE = "medweave.local"  # deployments of this type are on the machine that drives the run

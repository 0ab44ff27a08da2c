"""Distributed steps over the pods of a COMPSs cluster: `medweave.compss`."""

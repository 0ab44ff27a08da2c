"""Machines reached by ssh: `medweave.ssh`."""

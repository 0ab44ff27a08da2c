"""Jobs of a Slurm cluster: `medweave.slurm`."""

"""The connector `medweave.slurm`: steps as jobs of a Slurm cluster."""

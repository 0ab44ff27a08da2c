"""Steps in the pods of a cluster: `medweave.kubernetes`."""

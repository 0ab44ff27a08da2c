"""Steps in the pods of a Helm release: `medweave.helm`."""

"""Steps on this machine: `medweave.local`."""

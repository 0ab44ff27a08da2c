"""What moves between sites: counted, and verified on arrival. `medweave.transfer`."""

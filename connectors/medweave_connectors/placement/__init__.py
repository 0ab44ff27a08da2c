"""Where and when jobs run: `medweave.scheduler`."""

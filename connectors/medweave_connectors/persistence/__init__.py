"""StreamFlow's tables, and the engine's verdict about a run: `medweave.database`."""

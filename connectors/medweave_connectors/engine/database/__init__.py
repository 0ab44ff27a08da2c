"""StreamFlow's database: one file per run."""

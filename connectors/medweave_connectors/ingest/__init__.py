"""How data enter a run: under pseudonyms, so that neither engine nor site sees the names of their files and folders."""

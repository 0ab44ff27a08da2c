"""`medweave-step encode-table`: rows of a table as input of a network."""

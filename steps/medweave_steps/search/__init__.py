"""`medweave-step search`: trials of a grid side by side, one table and the best model of them."""

"""Every type that travels between steps as a file, and the errors a step may end with. Standard library only."""

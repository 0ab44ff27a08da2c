"""What the connectors of Kubernetes pods share: which pods there are, what became of them, and commands in them."""

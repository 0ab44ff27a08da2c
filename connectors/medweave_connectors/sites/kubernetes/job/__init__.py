"""`mode: job`: one Kubernetes Job per step."""

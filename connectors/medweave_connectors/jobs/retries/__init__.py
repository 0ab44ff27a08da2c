"""Retries: the policy for each kind of failure, and the attempts at a step."""

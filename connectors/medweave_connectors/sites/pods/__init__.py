"""Shared by the connectors of Kubernetes pods: API access, pod states, startup, and commands in containers."""

"""Kubernetes objects as dataclasses: pods and their states, volumes, workloads. Pure."""

"""The Kubernetes API server: access, credentials, channels."""

"""Checks of a site: connections, schedulers, clusters, disk space, rights and routes."""

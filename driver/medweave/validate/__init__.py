"""Offline checks of workflows, bindings, sites, job files and charts."""

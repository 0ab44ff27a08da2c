"""Cohorts: discovery, labels, ground truth, prepared cases."""

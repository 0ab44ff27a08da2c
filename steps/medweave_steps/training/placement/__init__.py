"""Placement of a network's layers on devices: measured loads, and GABRA, a genetic algorithm.

Source: Akintoye et al. 2021, "A Hybrid Parallelization Approach for Distributed and Scalable Deep Learning", section 4.2.
"""

"""Processes, shells, streams and errors of the driver's machine; the lowest layer."""

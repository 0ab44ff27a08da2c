"""Lists of files with their digests: scanned locally and remotely, cached, compared."""

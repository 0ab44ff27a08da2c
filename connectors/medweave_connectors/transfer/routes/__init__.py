"""Routes between sites: same file system, direct, bucket, via the driver."""

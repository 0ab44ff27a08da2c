"""Copies between two sites by way of an S3-compatible bucket, whose owner sees sealed pieces only."""

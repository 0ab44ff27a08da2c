"""Copies between two sites by an S3 bucket."""

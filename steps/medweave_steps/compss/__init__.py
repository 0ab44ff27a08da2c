"""What `runcompss` starts. It takes a Python file and puts that file's folder on every worker's path, so this one has its own."""

"""The steps of StreamFlow that execute jobs, with cache, data classes, provenance and partial failures."""

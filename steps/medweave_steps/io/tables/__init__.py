"""Tables: reading them in batches, encoding their rows, and blocks of encoded rows on disk."""

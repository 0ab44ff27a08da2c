"""What a job read and wrote, by content: no name, no path, no free text."""

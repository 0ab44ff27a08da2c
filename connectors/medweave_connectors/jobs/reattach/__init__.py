"""Re-attaching to jobs that an earlier driver submitted: the journal, and comparing jobs."""

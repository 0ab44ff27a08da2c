"""What each job read and wrote, recorded for the event log."""

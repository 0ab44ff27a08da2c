"""What each failure of a job leads to: a table per site, and the decision."""

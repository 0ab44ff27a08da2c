"""`check`: says what is in a cohort and what is wrong with it, before an hour is spent."""

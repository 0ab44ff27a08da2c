"""`check`: the content of a cohort and the errors in it, found before anything is computed."""

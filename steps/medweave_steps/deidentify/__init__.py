"""`deidentify`: turns an identified cohort into a de-identified one, and stores the re-identification map apart from it."""

"""`deidentify`: turns an identified cohort into a de-identified one, and keeps at home what leads back."""

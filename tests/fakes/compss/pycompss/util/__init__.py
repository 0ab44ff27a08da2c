"""What is not for programs."""

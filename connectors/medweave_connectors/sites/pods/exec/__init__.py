"""Commands in containers, and the copies that run through them."""

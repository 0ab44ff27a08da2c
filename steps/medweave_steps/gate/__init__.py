"""`gate`: measures candidates on the machine that segments, and accepts or refuses them."""

"""Steps whose work was done before, on this machine and by content: what they have written is kept, and given to a later job."""

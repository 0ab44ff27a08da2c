"""`medweave-step place-layers`: measure the loads of a network's layers and place them on devices."""

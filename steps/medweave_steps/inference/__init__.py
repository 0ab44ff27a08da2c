"""From a prepared volume to a mask on the source grid, without torch; shared by `gate` and `segment`."""

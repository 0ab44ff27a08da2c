"""Jobs that a driver which is gone has left at a site: written down beforehand, known again, and taken over by the next driver."""

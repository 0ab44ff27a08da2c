"""Jobs of any site: requests, worker environments, node groups, retries and re-attaching."""

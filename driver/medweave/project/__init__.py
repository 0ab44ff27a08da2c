"""Files of a project: sites, deployments, workflows."""

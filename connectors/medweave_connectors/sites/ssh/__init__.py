"""The connector `medweave.ssh`: machines reached by ssh."""

"""Where steps can run: medweave's plug-in for StreamFlow. The only package that imports streamflow."""

"""The blob store of a site: content-addressed files."""

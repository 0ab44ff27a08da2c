"""Programs that run at a site: standard library only, Python 3.8 or later."""

"""Worker environments at sites: wheels and installation."""

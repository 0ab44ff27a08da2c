"""StreamFlow subclasses and replacements of StreamFlow names."""

"""Reading YAML and CWL documents: line numbers, types, closest matches, field errors."""

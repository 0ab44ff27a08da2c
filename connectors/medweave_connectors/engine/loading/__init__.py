"""Loading of CWL documents and StreamFlow files by the engine."""

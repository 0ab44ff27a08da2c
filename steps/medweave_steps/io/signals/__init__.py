"""ECG recordings: WFDB records, R peaks, and samples of five heartbeats."""

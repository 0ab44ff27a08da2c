"""The step's surroundings: environment, threads, signals, progress, and the frame every verb runs in."""

"""Effects. One outside thing a file; no opinions."""

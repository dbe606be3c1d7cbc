"""Detectors: one file a fault. Each judges the stream of accepted records."""

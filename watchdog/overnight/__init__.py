"""Overnight: a watchdog for GPU training runs on one box."""

__version__ = "0.1.0"

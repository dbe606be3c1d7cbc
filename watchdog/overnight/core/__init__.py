"""Decisions. No clock, process, file, socket, thread, randomness or logging in here."""

"""The loop: one queue, one consumer, core decides, adapters act."""

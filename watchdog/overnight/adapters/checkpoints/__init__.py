"""Checkpoints on disk: found, verified without unpickling, kept safe from rotation."""

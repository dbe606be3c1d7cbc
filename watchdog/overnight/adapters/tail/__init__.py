"""Following what a worker writes."""

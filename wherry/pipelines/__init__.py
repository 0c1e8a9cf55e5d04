"""Models that call models, in this process."""

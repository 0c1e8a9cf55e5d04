"""Which replica gets a row: a simulator of fronts and owners."""

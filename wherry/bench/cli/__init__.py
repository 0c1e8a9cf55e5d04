"""`wherry bench`: from the command line to runs and their report."""

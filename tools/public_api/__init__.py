"""What is public of wherry, and whether a change takes some of it away."""

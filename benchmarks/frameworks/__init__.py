"""The same classifier in five frameworks that serve Python functions."""

"""How models write what is more than text: calls of tools, and thoughts."""

"""Which pictures of wherry at work do README and the pages show? `python -m tools.pictures` makes
them."""

"""Which models are to be loaded again when a file is saved, and how? `wherry serve --reload`."""

"""`wherry init`: a folder with a model, its test, its settings and its image."""

"""How does a foreign model (a file, a folder, an ensemble) become a wherry Model?"""

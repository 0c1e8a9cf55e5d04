"""How do requests reach a model that another process owns, and how do its answers come back?"""

"""How is a model called at a route of its own, in its own types?"""

"""How does a model call other models in the same process?"""

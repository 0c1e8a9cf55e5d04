"""How does a user write and configure a model?"""

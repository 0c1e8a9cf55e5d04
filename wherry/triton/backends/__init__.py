"""How does a model file or folder of another framework become a wherry Model?"""

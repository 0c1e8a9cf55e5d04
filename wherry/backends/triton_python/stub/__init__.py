"""What runs in the process of a Python model?

Everything here also runs on other Pythons (3.8 and later) than the server's, in environments that
have numpy and nothing else: no other part of wherry is imported, and no syntax younger than that.
"""

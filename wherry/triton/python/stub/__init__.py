"""What runs in the process of a Python model?

This code also runs on other Pythons than the server's (3.8 and later), in environments that have
only numpy: it imports no other part of wherry and uses no newer syntax.
"""

"""How do the traces and metrics of a server reach those that collect them?"""

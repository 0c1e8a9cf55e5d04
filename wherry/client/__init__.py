"""How does a program call a running server as it would call a Runtime?"""

from wherry.client.client import Client

__all__ = ["Client"]

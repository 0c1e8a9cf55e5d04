"""How does a program call a running server with the interface of a Runtime?"""

from wherry.core.client.client import Client

__all__ = ["Client"]

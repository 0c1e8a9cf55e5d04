"""How do requests that a front has parsed enter the runtime of their owner?"""

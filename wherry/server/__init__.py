"""How does a server begin, become ready, drain and end?"""

"""Which clients may call what?"""

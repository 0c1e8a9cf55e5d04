"""Which values pass through wherry, and which errors?"""

"""What travels through wherry, and how does it fail?"""

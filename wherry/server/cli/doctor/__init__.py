"""`wherry doctor`: what of this machine would keep a server from serving well?"""

"""How do several processes serve the clients of one server, whose models one of them owns?"""

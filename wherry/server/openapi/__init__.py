"""Which requests may a client send to this server, told as OpenAPI 3.1?"""

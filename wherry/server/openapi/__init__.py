"""Which requests may a client send to this server, as OpenAPI 3.1?"""

"""How is the runtime reached over HTTP?"""

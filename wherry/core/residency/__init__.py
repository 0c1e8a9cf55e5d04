"""Which models are on a device, if more are configured than fit?"""

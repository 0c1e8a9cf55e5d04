"""What is in a body that is no tensors: which media type has it, and which values by name?"""

"""What may the bytes of a message lie in?"""

Buffer = bytes | bytearray | memoryview

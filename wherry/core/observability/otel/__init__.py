"""How do the traces of a server reach an OpenTelemetry collector?"""

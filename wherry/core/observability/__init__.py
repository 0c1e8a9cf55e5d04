"""What happened, as numbers and log lines?"""

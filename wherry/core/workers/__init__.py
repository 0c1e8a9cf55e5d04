"""How do messages travel between this process and a worker process?"""

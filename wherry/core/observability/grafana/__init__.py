"""How does Grafana show what a server counts, and when does Prometheus send an alert?"""

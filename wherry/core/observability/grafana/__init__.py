"""How does Grafana show what a server counts, and when does Prometheus call somebody?"""

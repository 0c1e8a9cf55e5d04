"""What is on the Grafana board that wherry brings? `make board` writes it."""

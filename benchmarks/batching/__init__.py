"""How good is the self-tuning batcher? A simulator, scenarios, a page with the figures."""

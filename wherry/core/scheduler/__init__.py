"""Which requests run next, and when? Pure policies: no clock, no lock, no I/O."""

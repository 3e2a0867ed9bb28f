"""How fast the cleaner is, on logs that are generated for it: ``make bench``."""

"""What each API answers."""

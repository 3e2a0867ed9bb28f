"""What the broker does for each API. ``dispatch.HANDLERS`` is the list of them."""

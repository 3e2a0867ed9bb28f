"""The handlers: what the broker does for each API. ``dispatch.HANDLERS`` lists them."""

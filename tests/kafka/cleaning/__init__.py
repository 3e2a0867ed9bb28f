"""What a real broker wrote is cleaned, and the broker goes on with it."""

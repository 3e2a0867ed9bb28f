"""What every room stands on: records (bytes and columns), config, files, the clock, errors."""

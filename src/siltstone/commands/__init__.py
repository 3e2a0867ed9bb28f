"""What the commands and the library's functions do, without parsing arguments and printing (``cli``)."""

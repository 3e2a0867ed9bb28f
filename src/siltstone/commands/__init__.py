"""The work of the commands and of the library's functions; ``cli`` parses arguments and prints."""

"""``python -m siltstone``: the command line, as the script ``siltstone``."""

from siltstone.cli.main import main

if __name__ == "__main__":
    main()

"""``python -m siltstone`` is the same command as ``siltstone``."""

from siltstone.cli.main import main

if __name__ == "__main__":
    main()

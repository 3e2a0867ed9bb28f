"""What ``siltstone dump`` shows: files of a log directory as rows and text."""

"""Recovery: makes the files of log directories consistent before their logs are opened (``LogLoader``)."""

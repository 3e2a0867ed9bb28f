"""A cleaner that runs inside a ``LogManager`` while its logs are written and read (Kafka's
``LogCleaner``)."""

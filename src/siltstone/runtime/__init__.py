"""Open log directories (``LogManager``), their topics, producers and periodic tasks, and the services that
clean and compact their logs. (Kafka's ``LogManager``, ``LogCleaner``; Pulsar's broker.)"""

"""A partition directory is brought into order before it is opened (Kafka's ``LogLoader``)."""

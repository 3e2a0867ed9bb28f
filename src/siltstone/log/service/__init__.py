"""Logs in service: directories, the manager, topics, retention, the library face."""

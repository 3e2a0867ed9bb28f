"""The console, the REST API and the metrics of ``siltstone serve``: parses, asks ``commands``, renders."""

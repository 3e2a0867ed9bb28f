"""The REST APIs: a module has a ``router``, which ``site.ROUTERS`` lists."""

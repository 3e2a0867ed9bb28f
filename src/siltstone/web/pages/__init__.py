"""The console's pages: a module has a ``router``, which ``site.ROUTERS`` lists."""

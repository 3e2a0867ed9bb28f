"""One contract for every store, each asked of a real server that the tests start (`make test-stores`); they
need Maven, Java 17+ and, for Azure's, the Node that basedpyright brings."""

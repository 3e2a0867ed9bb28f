"""A broker that speaks Kafka's protocol over the log directories that ``siltstone serve`` has open.

::

    here            Kafka's class                        what it does
    server          SocketServer, Acceptor, Processor    sockets and the event loop
    connection      KafkaChannel, NetworkReceive         frames in, responses out, in order
    limits          ConnectionQuotas, MemoryPool         bounds of frames, connections and memory
    dispatch        KafkaApis.handle                     header and body of a request, to its handler
    handlers        KafkaApis                            one module for an API or a group of them
    purgatory       DelayedOperationPurgatory            parked fetches
    turns           num.io.threads                       fetches take turns with other requests
    delayed         Send in a later callback             responses that come later
    sessions        FetchSession                         incremental fetches
    store           ReplicaManager, MetadataCache        what handlers use of the open logs
    wire            RequestHeader, ApiMessage            bytes to messages and back; does no I/O

Only ``server``, ``connection``, ``delayed``, ``purgatory`` and ``turns`` use the event loop directly.
"""

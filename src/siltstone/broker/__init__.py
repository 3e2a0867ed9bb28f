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
    delayed         responseCallback of KafkaApis        responses that are made later
    sessions        FetchSession                         incremental fetches
    quotas          ClientQuotaManager                   throttles clients that exceed a quota
    counts          RequestMetrics, BrokerTopicMetrics   counters of requests and topics
    store           ReplicaManager, MetadataCache        what handlers use of the open logs
    wire            RequestHeader, ApiMessage            bytes to messages and back; does no I/O

Beside the broker there are ``embedded`` and ``separate``, a broker for tests (with ``faults``, ``calls``,
``keeper``), ``hand_over``, which passes log directories to a real Kafka, and clients of running brokers:
``plain_client``, ``remote_log_dirs``, ``remote_quotas``, ``remote_records``.

Only ``server``, ``connection``, ``delayed``, ``purgatory`` and ``turns`` use the event loop directly.
"""

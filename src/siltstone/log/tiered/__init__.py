"""Remote log segments of tiered storage (KIP-405), read together with the local rest of a log.

``layouts`` has the names of two storages, ``manifests`` what one object says of a segment, ``copies`` which
segments make up a log, ``remote_metadata`` Kafka's records about them: all pure. ``joining`` lists a storage
and gives ``base.files.joined`` the files that it adds to a partition's directory.
"""

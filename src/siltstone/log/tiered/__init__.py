"""Remote log segments of tiered storage (KIP-405), read together with the local rest of a log.

``layouts`` parses the file names of two storages, ``manifests`` the manifest that one of them keeps of each
segment, ``remote_metadata`` Kafka's records about segments; ``copies`` chooses the segments that make up a
log. These four are pure. ``joining`` lists a storage, and tells ``base.files.joined`` which of its files to
add to a partition's directory.
"""

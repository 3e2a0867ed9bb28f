"""A broker's ``__cluster_metadata-0``: which topics there are, their ids, their settings (KRaft, KIP-500)."""

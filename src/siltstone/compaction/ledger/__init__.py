"""Side-by-side compaction, as Pulsar does it: writes the last record of each key into a compacted ledger
beside the log, which stays as it is."""

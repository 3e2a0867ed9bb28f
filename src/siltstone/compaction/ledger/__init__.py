"""siltstone.compaction.ledger"""

"""siltstone.compaction.explain"""

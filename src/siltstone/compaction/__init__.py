"""siltstone.compaction"""

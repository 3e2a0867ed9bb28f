"""siltstone.compaction.inplace"""

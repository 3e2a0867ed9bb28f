"""siltstone.runtime"""

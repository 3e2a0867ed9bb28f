"""siltstone.commands"""

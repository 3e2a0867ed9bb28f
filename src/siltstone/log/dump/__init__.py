"""siltstone.log.dump"""

"""What tests share: logs to build, plain twins, oracles, models, programs that tests start. No tests."""

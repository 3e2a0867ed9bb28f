"""Our broker beside a real one."""

"""`LogConfig`: the table's values as attributes."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from siltstone.base.config import Config, LogConfig, find_key, key_of, parse_assignments


@pytest.mark.parametrize("field", fields(LogConfig), ids=lambda field: field.name)
def test_the_defaults_of_a_log_are_those_of_the_table(field) -> None:
    key = find_key(key_of(field.name))
    assert key.name == key_of(field.name)
    assert field.default == key.default
    assert type(field.default) is type(key.default)


def test_settings_become_the_values_of_a_log_config() -> None:
    config = Config(parse_assignments(["segment.bytes=4096", "cleanup.policy=compact,delete"], "here"))
    log = LogConfig.of(config)
    assert log == replace(LogConfig(), segment_bytes=4096, policies=("compact", "delete"))
    assert log.compacts and log.deletes


def test_a_log_config_is_frozen() -> None:
    with pytest.raises(AttributeError):
        LogConfig().segment_bytes = 1  # type: ignore[misc]

"""``python -m siltstone.base.config > docs/configuration.md`` writes the reference page."""

import sys

from siltstone.base.config.page import reference_page

sys.stdout.write(reference_page())

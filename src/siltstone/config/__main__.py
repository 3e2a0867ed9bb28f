"""``python -m siltstone.config > docs/configuration.md`` writes the reference page."""

import sys

from siltstone.config.page import reference_page

sys.stdout.write(reference_page())

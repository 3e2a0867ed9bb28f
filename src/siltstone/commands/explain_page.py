"""An explanation as one self-contained page: no script, nothing loaded from anywhere, every text escaped.

Its content security policy forbids what it does not need, so a key that looks like markup stays text twice
over. The page is ``explain.html`` beside this file, a template of Jinja; needs ``siltstone[web]``.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from siltstone.base.clock import time_text
from siltstone.commands import plots
from siltstone.compaction.explain import Explanation, GroupExplained, HotKey, LogExplanation

GROUPS_MOST = 40
"""Groups that are drawn; the table has them all."""


def page(explanation: Explanation) -> str:
    """The whole page."""
    environment = Environment(
        loader=PackageLoader("siltstone.commands", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plots.printable(value) if type(value) is str else value,
    )
    environment.filters |= {"size": plots.size_text, "time": time_text, "thousands": "{:,}".format}
    template = environment.get_template("explain.html")
    return template.render(explanation=explanation, plots_of=_plots_of, colours=plots.COLOURS)


def _plots_of(log: LogExplanation) -> dict[str, str]:
    """The plots of one log by name, "" where there is nothing to draw."""
    outcome = log.outcome
    sizes = [("kept", outcome.kept_bytes), *outcome.removed_bytes.items()]
    return {
        "reasons": plots.shares(sizes, "bytes by reason"),
        "times": plots.over_time(outcome.reclaimable, "written and reclaimable bytes over time"),
        "groups": plots.bars([_group(each) for each in outcome.groups[:GROUPS_MOST]], "bytes of each group"),
        "hottest": plots.bars([_key(each) for each in log.keys.hottest_keys], "records of the hottest keys"),
    }


def _group(group: GroupExplained) -> tuple[str, int, int, str]:
    label = f"{group.base_offset:,} to {group.end_offset - 1:,}"
    says = f"{plots.size_text(group.bytes_before)} → {plots.size_text(group.bytes_after)}"
    return label, group.bytes_before, group.bytes_after, says


def _key(key: HotKey) -> tuple[str, int, int, str]:
    return f"{key.key} ({key.key_size} B)", key.records, key.superseded, f"{key.records:,} records"

"""The console: one module for the pages that belong together; ``rendering`` has the templates."""

from __future__ import annotations

from fastapi import APIRouter

from siltstone.web.pages import (
    actions,
    broker,
    cleaner,
    clients,
    directories,
    emptying,
    help,
    lists_of_server,
    new_topic,
    overview,
    producing,
    records,
    selected,
    topic_tabs,
    topics,
)

router = APIRouter()
for pages in (
    overview,
    topics,
    topic_tabs,
    records,
    new_topic,
    selected,
    producing,
    cleaner,
    broker,
    clients,
    directories,
    lists_of_server,
    actions,
    emptying,
    help,
):
    router.routes.extend(pages.router.routes)

"""The console: one module for the pages that belong together; ``rendering`` has the templates."""

from __future__ import annotations

from fastapi import APIRouter

from siltstone.web.pages import actions, broker, cleaner, emptying, overview, topics

router = APIRouter()
for pages in (overview, topics, cleaner, broker, actions, emptying):
    router.include_router(pages.router)

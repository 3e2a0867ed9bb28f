"""The log directories, and what takes the space of one of them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from siltstone.commands import console
from siltstone.commands.console import DirectoryRow
from siltstone.commands.disk_contents import LogOnDisk, last_scan, outline, path_of, paths_of
from siltstone.commands.listing import Column
from siltstone.web.dependencies import CurrentServed
from siltstone.web.guards import VIEWER
from siltstone.web.pages.lists import Parameters, list_page

router = APIRouter(prefix="/ui/directories")
LEFT_OVERS_SHOWN = 200
_STOPPED = {True: "yes", False: "no: the next start recovers it", None: "in use"}
DIRECTORIES: tuple[Column[DirectoryRow], ...] = (
    Column(name="path", title="path", value=lambda row: row.path),
    Column(name="in_use", title="in use", value=lambda row: "yes" if row.in_use else "no"),
    Column(name="stopped_cleanly", title="stopped cleanly", value=lambda row: _STOPPED[row.stopped_cleanly]),
    Column(name="offline", title="offline", value=lambda row: row.offline),
    Column(name="logs", title="logs", value=lambda row: row.logs, is_number=True),
    Column(name="bytes", title="bytes of segments", value=lambda row: row.bytes, is_number=True),
    Column(name="free_bytes", title="free on its disk", value=lambda row: row.free_bytes, is_number=True),
)
LOGS: tuple[Column[LogOnDisk], ...] = (
    Column(name="topic", title="topic", value=lambda log: log.topic),
    Column(name="partition", title="partition", value=lambda log: log.partition, is_number=True),
    Column(name="bytes", title="bytes in all", value=lambda log: log.bytes, is_number=True),
    Column(name="segments", title="segments", value=lambda log: log.segments, is_number=True),
    Column(name="indexes", title="indexes", value=lambda log: log.indexes, is_number=True),
    Column(name="left_overs", title="left-overs", value=lambda log: log.left_overs, is_number=True),
    Column(name="ledgers", title="compacted ledgers", value=lambda log: log.ledgers, is_number=True),
)


@router.get("", dependencies=[VIEWER])
def directories(request: Request, served: CurrentServed, parameters: Parameters) -> Response:
    """The log directories."""
    rows, numbers = (
        console.directories(served),
        {path: number for number, path in enumerate(paths_of(served))},
    )
    return list_page(
        request,
        served,
        "directories.html",
        "directories",
        DIRECTORIES,
        rows,
        parameters,
        numbers=numbers,
        stopped=_STOPPED,
    )


@router.get("/{number}", dependencies=[VIEWER])
def directory(request: Request, served: CurrentServed, number: int, parameters: Parameters) -> Response:
    """What takes the space of one directory: its logs, the largest first, and left-over files."""
    scan = last_scan(served, number)
    contents = scan.found or outline(served, path_of(served, number))  # before the first scan has ended
    if parameters.format:
        scan.result()  # refuses the download until a scan has ended: it has all rows
    return list_page(
        request,
        served,
        "directory.html",
        f"directory-{number}",
        LOGS,
        contents.rows,
        parameters,
        scan=scan,
        contents=contents,
        left_overs=contents.left_overs[:LEFT_OVERS_SHOWN],
    )

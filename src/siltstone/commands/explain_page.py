"""An explanation as one self-contained page: no script, nothing loaded from anywhere, every text escaped.

Its content security policy forbids what it does not need, so a key that looks like markup stays text twice
over.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from siltstone.compaction.explain.model import WOULD_CLEAN, Explanation, LogExplanation

# Plots as inline SVG: plain text, no script, no file from elsewhere.
#
# Every text goes through ``escape``; colours are classes of the page's style sheet. A plot says in words what
# it shows (``title``), so that it is no riddle to a screen reader.

WIDTH, HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 12, 12, 30
UNITS = ("B", "kB", "MB", "GB", "TB")


def escape(text: object) -> str:
    """Text for an element or an attribute: control characters too, which no page may hold."""
    shown = "".join(each if each.isprintable() or each == " " else "�" for each in str(text))
    return html.escape(shown, quote=True)


def bytes_text(size: float) -> str:
    """Bytes for people: ``1.5 MB``, thousands by thousands."""
    for unit in UNITS[:-1]:
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {UNITS[-1]}"


def time_text(at_ms: int) -> str:
    """A time for people, in UTC; the number where it is none."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def svg(body: str, title: str, height: int = HEIGHT) -> str:
    """A plot around its body."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )


def shares(parts: Sequence[tuple[str, int]], title: str) -> str:
    """One bar cut into parts (name, bytes); each has the class of its name."""
    total = sum(size for _, size in parts)
    if total <= 0:
        return ""
    body, at = [], 0.0
    for name, size in parts:
        wide = size / total * WIDTH
        tip = f"{name}: {bytes_text(size)}, {size / total:.1%}"
        if wide > 0:
            body.append(
                f'<rect class="{escape(name)}" x="{at:.2f}" y="0" width="{wide:.2f}" height="28">'
                f"<title>{escape(tip)}</title></rect>"
            )
        at += wide
    return svg("".join(body), title, 28)


def legend(parts: Sequence[tuple[str, int]]) -> str:
    """The parts of ``shares`` in words."""
    total = max(sum(size for _, size in parts), 1)
    rows = [
        f'<li><span class="box {escape(name)}"></span>{escape(name)}: {bytes_text(size)}, '
        f"{size / total:.1%}</li>"
        for name, size in parts
        if size
    ]
    return f'<ul class="legend">{"".join(rows)}</ul>'


def areas(times: Sequence[int], series: Sequence[tuple[str, Sequence[int]]], title: str) -> str:
    """Areas over time (ms), one behind the other, the largest first; each has the class of its name."""
    most = max((max(values, default=0) for _, values in series), default=0)
    if len(times) < 2 or most <= 0:
        return ""
    wide, high = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    span = max(times[-1] - times[0], 1)
    body = [_grid(most)]
    for name, values in series:
        points = [
            f"{_LEFT + (at - times[0]) / span * wide:.1f},{_TOP + high - value / most * high:.1f}"
            for at, value in zip(times, values, strict=True)
        ]
        floor = _TOP + high
        path = f"{_LEFT},{floor} {' '.join(points)} {_LEFT + wide},{floor}"
        tip = f"{name}: {bytes_text(values[-1])} in the end"
        body.append(f'<polygon class="{escape(name)}" points="{path}"><title>{escape(tip)}</title></polygon>')
    base = HEIGHT - 8
    body.append(f'<text x="{_LEFT}" y="{base}">{escape(time_text(times[0]))}</text>')
    body.append(f'<text x="{WIDTH - _RIGHT}" y="{base}" class="end">{escape(time_text(times[-1]))}</text>')
    return svg("".join(body), title)


def _grid(most: int) -> str:
    high, found = HEIGHT - _TOP - _BOTTOM, []
    for step in range(5):
        y = _TOP + high - step / 4 * high
        found.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        label = escape(bytes_text(most * step / 4))
        found.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="end">{label}</text>')
    return "".join(found)


def bars(rows: Sequence[tuple[str, int, int, str]], title: str) -> str:
    """A row for each (label, all, part, what it says), ``part`` drawn over ``all``; at most some dozens."""
    most = max((whole for _, whole, _, _ in rows), default=0)
    if most <= 0:
        return ""
    left, wide, step = 240, WIDTH - 240 - 150, 20
    body = []
    for number, (label, whole, part, tip) in enumerate(rows):
        y = number * step
        shown = label if len(label) <= 34 else f"{label[:33]}…"
        body.append(f'<text x="{left - 8}" y="{y + 14}" class="end">{escape(shown)}</text>')
        for name, value in (("whole", whole), ("part", part)):
            size = max(value / most * wide, 0.5 if value else 0)
            body.append(
                f'<rect class="{name}" x="{left}" y="{y + 3}" width="{size:.1f}" height="14">'
                f"<title>{escape(f'{label}: {tip}')}</title></rect>"
            )
        at = left + whole / most * wide + 6
        body.append(f'<text x="{at:.1f}" y="{y + 14}">{escape(tip)}</text>')
    return svg("".join(body), title, max(step * len(rows), step))


GROUPS_MOST = 40
"""Groups that are drawn; the table has them all."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE = """
:root{color-scheme:light dark;--back:#fff;--fore:#1c2430;--dim:#667085;--line:#d5dae3;--soft:#f3f5f9}
@media(prefers-color-scheme:dark){
:root{--back:#12161d;--fore:#e4e8ef;--dim:#97a1b3;--line:#2d3643;--soft:#1a202a}}
body{background:var(--back);color:var(--fore);font:15px/1.5 system-ui,sans-serif}
body{margin:2rem auto;max-width:66rem;padding:0 1rem}h1{font-size:1.5rem}h3{font-size:1rem}
h2{font-size:1.2rem;border-top:1px solid var(--line);padding-top:1.2rem;margin-top:2.4rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
th:first-child,td:first-child{text-align:left}thead th{color:var(--dim);font-weight:600}
.dim{color:var(--dim)}.state{border-radius:.3rem;padding:.05rem .45rem;background:var(--soft)}
svg{width:100%;max-width:48rem;height:auto;display:block;margin:.4rem 0}
svg text{font:12px system-ui,sans-serif;fill:var(--fore)}
svg .end{text-anchor:end}svg line{stroke:var(--line)}
.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.3rem 1.2rem}
.box{display:inline-block;width:.8em;height:.8em;border-radius:.15em;margin-right:.4em}
.kept,.part{fill:#2f6fdf;background:#2f6fdf}.superseded{fill:#e07b39;background:#e07b39}
.tombstones{fill:#8a5cc9;background:#8a5cc9}.aborted{fill:#c4455d;background:#c4455d}
.keyless{fill:#8f9bad;background:#8f9bad}.markers{fill:#3f9d77;background:#3f9d77}
.written,.whole{fill:#a9c2ea;background:#a9c2ea}.reclaimable{fill:#e07b39;background:#e07b39}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.2rem;margin:.6rem 0}
dt{color:var(--dim)}dd{margin:0}
"""


def page(explanation: Explanation) -> str:
    """The whole page."""
    logs = "".join(_log(log) for log in explanation.logs)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>What cleaning would do</title><style>{_STYLE}</style></head><body>"
        "<h1>What cleaning would do</h1>"
        f'<p class="dim">As of {escape(time_text(explanation.now_ms))} UTC. Nothing was changed.</p>'
        f"{_overview(explanation.logs)}{logs}{_rest(explanation)}</body></html>\n"
    )


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(each)}</td>' for each in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return escape(f"{value:,}" if isinstance(value, int) else value)


def _overview(logs: Sequence[LogExplanation]) -> str:
    names = ("log", "state", "dirty", "before", "after", "records", "would go", "keys", "Kafka's passes")
    rows = [
        (
            log.name,
            log.status,
            None if log.dirty_ratio is None else f"{log.dirty_ratio:.1%}",
            bytes_text(log.bytes_before),
            None if log.bytes_after is None else bytes_text(log.bytes_after),
            log.records.get("total"),
            sum(log.removed.values()) if log.removed else None,
            log.distinct_keys,
            None if log.kafka is None else log.kafka.passes,
        )
        for log in logs
    ]
    return _table(names, rows)


def _log(log: LogExplanation) -> str:
    parts = [f'<h2>{escape(log.name)} <span class="state">{escape(log.status)}</span></h2>']
    if log.reason:
        parts.append(f"<p>{escape(log.reason)}</p>")
    parts.append(_facts(log))
    if log.is_explained:
        sizes = [("kept", log.kept_bytes), *log.removed_bytes.items()]
        parts += ["<h3>Bytes of records by what becomes of them</h3>", shares(sizes, "bytes by reason")]
        parts += [legend(sizes), _reasons(log), _times(log), _groups(log), _keys(log), _tombstones(log)]
    parts += [f'<p class="dim">{escape(note)}</p>' for note in log.notes]
    return "".join(parts)


def _facts(log: LogExplanation) -> str:
    rows: list[tuple[str, str]] = [("directory", log.directory)]
    if log.first_dirty_offset is not None and log.first_uncleanable_offset is not None:
        span = f"{log.first_dirty_offset:,} up to {log.first_uncleanable_offset:,}"
        rows.append(("dirty offsets", f"{span}; the log: {log.log_start_offset:,} to {log.log_end_offset:,}"))
        bounds = ", ".join(f"{bound.name} {bound.offset:,}" for bound in log.bounds)
        rows.append(("bounded by", bounds))
    if log.dirty_ratio is not None and log.min_dirty_ratio is not None:
        late = f", overdue by {log.overdue_ms / 1000:,.0f} s" if log.overdue_ms else ""
        rows.append(("dirty ratio", f"{log.dirty_ratio:.3f}, needed: over {log.min_dirty_ratio:g}{late}"))
    if log.kafka is not None:
        kafka = log.kafka
        needs = f"at least {kafka.passes}" if kafka.passes > 1 else "1"
        rows.append(
            (
                "Kafka's passes",
                f"{needs}: its map holds {kafka.map_keys:,} keys ({bytes_text(kafka.buffer_bytes)}); the "
                f"dirty part has {log.distinct_dirty_keys:,}",
            )
        )
    if log.bytes_after is not None:
        saved = log.bytes_before - log.bytes_after
        rows.append(("on disk", f"{bytes_text(log.bytes_before)}, {bytes_text(saved)} of it would be free"))
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in rows)}</dl>"


def _reasons(log: LogExplanation) -> str:
    rows = [
        (name, count, bytes_text(log.removed_bytes[name])) for name, count in log.removed.items() if count
    ]
    return _table(("why they go", "records", "bytes, uncompressed"), rows) if rows else ""


def _times(log: LogExplanation) -> str:
    times = [moment.at_ms for moment in log.reclaimable]
    written = [moment.written_bytes for moment in log.reclaimable]
    free = [moment.reclaimable_bytes for moment in log.reclaimable]
    drawn = areas(
        times, [("written", written), ("reclaimable", free)], "written and reclaimable bytes over time"
    )
    if not drawn:
        return ""
    words = "written up to then, and what of it could have been done without by then"
    return f'<h3>Reclaimable bytes over time</h3>{drawn}<p class="dim">{words}</p>'


def _groups(log: LogExplanation) -> str:
    rows = [
        (
            f"{group.base_offset:,} to {group.end_offset - 1:,}",
            group.bytes_before,
            group.bytes_after,
            f"{bytes_text(group.bytes_before)} → {bytes_text(group.bytes_after)}",
        )
        for group in log.groups[:GROUPS_MOST]
    ]
    names = ("offsets", "segments", "before", "after", "records", "stay")
    table = [
        (
            f"{group.base_offset:,} to {group.end_offset - 1:,}",
            group.segments,
            bytes_text(group.bytes_before),
            bytes_text(group.bytes_after),
            group.records_before,
            group.records_after,
        )
        for group in log.groups
    ]
    return f"<h3>Groups of segments</h3>{bars(rows, 'bytes of each group')}{_table(names, table)}"


def _keys(log: LogExplanation) -> str:
    rows = [
        (
            f"{each.records_from} to {each.records_to} records" if each.records_to > 1 else "1 record",
            each.keys,
        )
        for each in log.keys_by_records
    ]
    found = [_table(("keys with", "keys"), rows)] if rows else []
    if log.hottest_keys:
        drawn = [
            (f"{each.key} ({each.key_size} B)", each.records, each.superseded, f"{each.records:,} records")
            for each in log.hottest_keys
        ]
        names = ("key", "records", "superseded", "bytes", "superseded bytes", "last offset")
        table = [
            (
                f"{each.key} ({each.key_size} B)",
                each.records,
                each.superseded,
                bytes_text(each.bytes),
                bytes_text(each.superseded_bytes),
                each.last_offset,
            )
            for each in log.hottest_keys
        ]
        found += [f"<h3>Hottest keys</h3>{bars(drawn, 'records of the hottest keys')}", _table(names, table)]
    head = "" if log.distinct_keys is None else f"<h3>Keys</h3><p>{log.distinct_keys:,} distinct keys.</p>"
    return head + "".join(found)


def _tombstones(log: LogExplanation) -> str:
    if not log.tombstones_waiting:
        return ""
    rows = [
        (
            "not stamped yet" if each.at_ms < 0 else f"{time_text(each.at_ms)} UTC",
            each.tombstones,
            bytes_text(each.bytes),
        )
        for each in log.tombstones_waiting
    ]
    return "<h3>Tombstones that wait</h3>" + _table(("may go from", "tombstones", "bytes"), rows)


def _rest(explanation: Explanation) -> str:
    rows = [f"passed over: {path} ({reason})" for path, reason in explanation.passed_over]
    unseen = [log.name for log in explanation.logs if log.status == WOULD_CLEAN and not log.is_explained]
    rows += [f"not looked into: {name}" for name in unseen]
    return "".join(f'<p class="dim">{escape(text)}</p>' for text in (*explanation.notes, *rows))

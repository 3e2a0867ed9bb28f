"""The page: whole by itself, without a script, and with nothing of a log that is not text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from siltstone.commands.explain_page import bars, over_time, page, shares
from siltstone.compaction.explain import Explanation, Moment
from tests.support.cleaning import logs
from tests.support.explaining import explain_all
from tests.support.operator.staged import stage

HOSTILE = [
    b"<script>alert(1)</script>",
    b'"><img src=x onerror=alert(1)>',
    b"</title></svg><iframe src='//evil'>",
    b"&lt;b&gt;",
    b"\x1b[31mred\x00\x07",
    "schlüssel-✓".encode(),
    b"\xff\xfe\xfd",
    b"k" * 500,
]


class Elements(HTMLParser):
    """Every element with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _elements(text: str) -> Elements:
    parser = Elements()
    parser.feed(text)
    return parser


@pytest.fixture
def hostile(tmp_path: Path) -> Explanation:
    """A log whose keys and values want to be markup, explained with its keys shown."""
    from siltstone.commands import review

    batches = [
        logs.batch([logs.Rec(offset=offset, key=HOSTILE[offset % len(HOSTILE)], value=b"<b>" * 3)])
        for offset in range(40)
    ]
    logs.write_log(tmp_path / "logs", {0: batches[:20], 20: batches[20:30], 30: batches[30:]})
    config = ("cleanup.policy=compact", "min.cleanable.dirty.ratio=0.0")
    return review.explain(
        review.ExplainRequest(
            directories=[tmp_path / "logs"],
            topics=["topic"],
            config=config,
            now_ms=logs.NOW,
            show_keys=True,
            no_spark=True,
        )
    )


def test_keys_that_look_like_markup_stay_text(hostile: Explanation) -> None:
    text = page(hostile)
    assert hostile.logs[0].status == "would_clean" and len(hostile.logs[0].keys.hottest_keys) == len(HOSTILE)
    parsed = _elements(text)
    tags = {tag for tag, _ in parsed.elements}
    assert not tags & {"script", "img", "iframe", "link", "object", "embed", "form", "a", "base"}
    assert "<script>alert(1)</script> (25 B)" in parsed.text
    assert not any(
        name.startswith("on") or name in ("src", "href")
        for _, attributes in parsed.elements
        for name in attributes
    )
    assert not any(ord(character) < 32 and character != "\n" for character in text)


def test_the_page_loads_nothing_from_elsewhere(hostile: Explanation) -> None:
    text = page(hostile)
    assert "default-src &#x27;none&#x27;" in text
    assert not re.findall(r"url\(|@import|https?://", text)


def test_every_plot_is_well_formed_xml_with_a_title(golden: Path, tmp_path: Path) -> None:
    for name in ("txn", "tombstones", "mixed"):
        text = page(explain_all(stage(golden, name, tmp_path / name), show_keys=True))
        plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        assert len(plots) >= 4
        for plot in plots:
            tree = ElementTree.fromstring(plot)
            assert tree.find("title") is not None and tree.get("aria-label")
            _, _, width, height = map(float, tree.get("viewBox", "").split())
            for box in tree.iter("rect"):
                right = float(box.get("x", "0")) + float(box.get("width", "0"))
                assert float(box.get("x", "0")) >= 0 and right <= width + 0.1
                assert float(box.get("y", "0")) + float(box.get("height", "0")) <= height + 0.1
            for area in tree.iter("polygon"):
                points = [tuple(map(float, pair.split(","))) for pair in area.get("points", "").split()]
                assert all(0 <= x <= width and 0 <= y <= height for x, y in points)


def test_the_bar_of_a_hot_key_shows_what_is_kept_of_all_its_records(hostile: Explanation) -> None:
    (log,), text = hostile.logs, page(hostile)
    (plot,) = re.findall(r"<svg[^>]*records of the hottest keys.*?</svg>", text, re.DOTALL)
    widths = [float(box.get("width", "0")) for box in ElementTree.fromstring(plot).iter("rect")]
    keys = log.keys.hottest_keys
    retained = [(key.records - key.superseded) / key.records for key in keys]
    assert min(retained) < 0.5 and [
        part / whole for whole, part in zip(widths[::2], widths[1::2], strict=True)
    ] == pytest.approx(retained, abs=0.02)


def test_masked_keys_are_not_on_the_page(golden: Path, tmp_path: Path) -> None:
    staged = stage(golden, "tombstones", tmp_path / "logs")
    assert "key-00" not in page(explain_all(staged))
    assert "key-00" in page(explain_all(staged, show_keys=True))


def test_an_explanation_without_logs_has_a_page() -> None:
    text = page(Explanation(now_ms=1 << 62, passed_over=[("<i>", "&")], notes=["<u>"]))
    assert {"i", "u"} & {tag for tag, _ in _elements(text).elements} == set()


def test_a_plot_without_data_is_empty() -> None:
    moment = Moment(at_ms=1, written_bytes=5, reclaimable_bytes=5)
    assert shares([("kept", 0)], "t") == over_time([moment], "t") == over_time([], "t") == bars([], "t") == ""


def test_control_characters_are_replaced() -> None:
    text = page(Explanation(now_ms=0, notes=["a\x00b\u202ec'\"<&>"]))
    assert "a\ufffdb\ufffdc&#39;&#34;&lt;&amp;&gt;" in text


def test_times_out_of_a_clocks_range_have_a_plot() -> None:
    ends = [Moment(at_ms=at, written_bytes=5, reclaimable_bytes=2) for at in (-(1 << 63), 0, (1 << 63) - 1)]
    drawn = over_time(ends, "bytes")
    assert "nan" not in drawn and f"{(1 << 63) - 1} ms" in drawn

"""The compression codecs of Kafka's format: the one list of them (Kafka's ``CompressionType``).

A row is a codec: its number in the attributes, its name, the first magic that may use it, and the range of
its levels. Names of settings and flags, checks and dumps come from here; ``records.codecs`` finds a codec's
functions by its number. A new codec needs

- a row here, and two functions in ``records/codecs.py``;
- a kernel for ``codecs.declared_sizes``, so that the size of a batch is known before it is decompressed;
- if it has levels, the field ``compression_NAME_level`` of ``LogConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
"""The numbers of the codecs in a batch's attributes. They are plain ints, since kernels compare them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The compression levels of a codec: the range, default and documentation of its setting, as in Kafka.
    ``refused``: levels within the range that are not allowed."""

    minimum: int
    maximum: int
    default: int
    doc: str
    refused: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """One codec. ``id``: its number in the attributes of a batch. ``first_magic``: the oldest record format
    (magic) that may use it. ``levels``: None if it has none."""

    id: int
    name: str
    first_magic: int = 0
    levels: Levels | None = None


CODECS = (
    Codec(id=NONE, name="none"),
    Codec(
        id=GZIP,
        name="gzip",
        levels=Levels(
            minimum=-1,
            maximum=9,
            default=-1,
            doc="Level of gzip; -1 is the library's own choice.",
            refused=(0,),
        ),
    ),
    Codec(id=SNAPPY, name="snappy"),
    Codec(id=LZ4, name="lz4", levels=Levels(minimum=1, maximum=17, default=9, doc="Level of lz4.")),
    Codec(
        id=ZSTD,
        name="zstd",
        first_magic=2,
        levels=Levels(minimum=-131_072, maximum=22, default=3, doc="Level of zstd."),
    ),
)
"""All codecs; the index is the number."""
CODEC_NAMES = tuple(codec.name for codec in CODECS)


# Values of ``compression.type`` that name no codec. With "producer" a batch keeps the codec that its producer
# chose.
_WITHOUT_CODEC = ("uncompressed", "producer")
COMPRESSION_TYPES = (_WITHOUT_CODEC[0], *reversed(CODEC_NAMES[1:]), _WITHOUT_CODEC[1])
"""The values of ``compression.type``, in Kafka's order."""


def codec_number(name: str) -> int:
    """The codec number of a ``compression.type``, NONE for "uncompressed" and "producer"."""
    return NONE if name in _WITHOUT_CODEC else CODEC_NAMES.index(name)


def codec_name(number: int) -> str:
    """The name of a codec, or ``unknown(NUMBER)`` if no codec has the number."""
    return CODEC_NAMES[number] if number < len(CODEC_NAMES) else f"unknown({number})"

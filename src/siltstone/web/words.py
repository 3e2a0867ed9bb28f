"""The words of the console in plain English, for a reader who has never seen Kafka: the page *Help* lists
them, and pages link a word to its row there. Kafka's words stay; here they are explained. What the words mean
exactly is in docs/glossary.md.
"""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, str] = {
    "topic": "A named list of records, such as customers. Records are only ever added at its end: a new "
    "address is a new record, and the old one is not changed.",
    "partition": "A topic is divided into partitions, counted from 0, so that several machines can share "
    "it. All records of a key are in one partition.",
    "log": "One partition as it lies on disk: customers-0 is partition 0 of the topic customers.",
    "record": "One entry: a key, a value, and the time when it was written.",
    "key": "What a record is about, such as a customer's number. A newer record of the same key replaces "
    "the older ones.",
    "offset": "The number of a record in its partition, counted from 0. No number is used twice: where "
    "some are missing, records were removed.",
    "compaction": "For topics with cleanup.policy=compact: the last record of each key stays, older ones "
    "of the key are removed for good. What remains is like a register with one line for "
    "each customer.",
    "cleaning": "One compaction of one log. The log cleaner does it by itself when enough is dirty.",
    "retention": "For topics with cleanup.policy=delete: the oldest records are removed when they are "
    "too old, or when the log is too large, whatever their keys.",
    "tombstone": "A record with a key and no value: it says that its key is deleted. It stays for a "
    "while, so that every reader learns of it, and is removed after its delete horizon.",
    "delete horizon": "The time after which a cleaning may remove a tombstone: delete.retention.ms (a "
    "day, unless it was changed) after the first cleaning that has seen it.",
    "segment": "One file of a log: neighbouring records. Compaction writes segments anew, retention "
    "removes whole ones.",
    "active segment": "The newest segment, which new records are written to. It is never cleaned. When "
    "it is full or old enough, a new one begins (it is rolled), and this one can be cleaned.",
    "clean": "Has been through a cleaning: each key is there once.",
    "dirty": "Not cleaned yet: may have older records of keys that have a newer one. Nothing is wrong "
    "with it.",
    "dirty ratio": "The share of a log that is dirty. The cleaner takes the log when the share is over "
    "what its topic needs (min.cleanable.dirty.ratio).",
    "first dirty": "The offset up to which the log has been cleaned: what is above has not.",
    "cleaner checkpoint": "Where the broker notes the first dirty offset of each log.",
    "first uncleanable": "The offset at which the next cleaning will end: what is above may not be "
    "cleaned yet, most often because it is in the active segment. Nothing is wrong with it.",
    "uncleanable": "Of a log: the cleaner has found damage, and leaves the log alone until a user has "
    "looked. Of a segment: it may not be cleaned yet.",
    "log start": "The first offset that is still readable: what was below has been removed by retention, "
    "or because a user asked for it.",
    "high watermark": "The offset up to which readers get records; with one machine, the end of the log.",
    "dirty bytes": "Bytes of what is dirty and may be cleaned now.",
    "saved": "Bytes before the cleanings less bytes after them: disk that is free again.",
    "recopy": "Bytes that a cleaning has written, as a share of those that it has read: 10 % means that "
    "nine tenths were removed.",
    "dry run": "A cleaning that only computes what it would remove, and changes nothing.",
    "ledger": "The result of side-by-side compaction (Pulsar's): a copy with the last record of each "
    "key, beside the log, which stays as it is.",
}
STATES: Mapping[str, str] = {
    "uncleanable": "The cleaner has found damage and leaves the log alone; look at Cleaner, Uncleanable.",
    "unreadable": "The log's files cannot be read: most often because they are damaged. The sentence on the "
    "topic's tab Segments names the file and the byte.",
    "cleaning": "It is being cleaned now.",
    "due": "The cleaner takes it in its next round.",
    "tombstones": "All is clean; deletions (tombstones) wait until they may be removed.",
    "dirty": "There is something to clean, but not enough yet.",
    "changing": "Its files were changed while they were read; they are read again.",
    "up_to_date": "There is nothing to clean.",
    "skipped": "The cleaner has nothing to do with it: most often because the topic is not compacted.",
}
"""What the states of a log mean, the most urgent first; see ``commands.watch.STATES``."""

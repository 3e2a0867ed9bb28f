"""Compaction in place, as Kafka's log cleaner does it: plans what is cleaned, swaps the cleaned segments in,
applies retention, and keeps what ``undo`` restores."""

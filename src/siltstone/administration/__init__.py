"""What the commands for topics, settings, offsets and records do, apart from their flags and their printing.

- ``places``: the directories that are meant, looked at (no lock, no change) or opened (locked, recovered)
- ``topics``, ``settings``: what there is, and changing it; ``offsets``, ``sizes``: what the logs hold
- ``producing``, ``consuming``: records in and out

Reading functions work on a ``Look``: beside a live broker, on a backup, on what a crash left. Writing ones
open the directories through ``LogManager``; with ``dry_run`` they check everything on a ``Look`` instead.
"""

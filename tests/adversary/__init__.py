"""A room of hostile directories: logs that are attacked, commands that meet them, one oracle.

::

    make adversary                                  an hour; SILTSTONE_ADVERSARY_SECONDS=600 for ten minutes
    make adversary CASE='life/3~flip_log~clean~17'  exactly that case again; its directory is kept
    SILTSTONE_ADVERSARY_SEED=5 make adversary       other cases; the seed is printed at the start

    bases.py      the logs: golden sets of every kind, whole brokers, random logs with transactions, small
                  made ones
    attacks.py    what is done to them, one to three at a time: bits, cuts, zeros, garbage, swapped and
                  deleted files; links, queues and directories in the place of files; owners and modes;
                  forged checkpoints, snapshots, indexes, ``.txnindex``, batch headers, horizons; bombs;
                  numbers in every setting; clocks; leftovers of swaps; names
    commands.py   clean in place (also killed and run again, beside another run, with an audit, kept and
                  undone, as a process, on Spark), clean --out, recover, a program that opens, appends and
                  cleans, delete-records, compact-topic, and all that only looks
    plain.py      what a log holds, read from its ``.log`` files alone, without the product
    oracle.py     what must hold between before and after
    judging.py    one case: scene, attacks, commands, verdict
    room.py       many cases in workers with a limit of memory and of time, and the table at the end

**The oracle.** After any command a log is as it was and the answer says why, or every record that is not
there any more has a reason in the log itself: a later committed value of its key below what may be cleaned,
an abort marker, a delete horizon that is over, no key where keyless records may go, retention. What stays
reads the same: key, value, headers, timestamp, producer, sequence. Offsets ascend, the end stays, nothing at
or above the high watermark's entry, an open transaction or the active segment goes, damage is left where it
is (recovery may cut it off where its rules say so, and says so). A tree beside the directory, which links
lead to, never changes. Errors are one line with exit status 1 or 2, never a traceback; a case ends within a
minute and within 3 GiB.

Transactions are judged by their markers. Where an attack writes record bytes that contradict themselves (a
producer that its marker does not have), either reading counts (``Scene.doubtful``).

**In CI** (``test_hostile_cases.py``) the same generator runs from a fixed seed, and
``test_broken_cleaners.py`` breaks the cleaner in several ways, each of which those cases must find.
"""

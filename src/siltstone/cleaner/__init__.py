"""What to clean, and how: Kafka's log cleaner without Kafka and without Spark.

``plan`` decides (pure), ``keys`` finds the last offset of each key, ``rewrite`` writes what stays,
``check`` reads it back, ``work`` strings them into the pieces that an engine spreads, ``cleaner`` carries
a plan out: engine, swap, checkpoint. Engines are handed in; the in-process one is ``engine``.
"""

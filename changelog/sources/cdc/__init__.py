"""Change data capture: the shop's database → Debezium → ``cdc.shop`` → the mapper → the changelog.

``capture``, ``connect`` and ``database`` see to it that changes are captured; ``stream`` is the topic they are in;
``events`` reads its records, ``mapping`` knows the shop's tables, ``mapper`` says what follows for the log, with the
``rows`` of a snapshot; ``service`` runs it.
"""

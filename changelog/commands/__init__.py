"""Commands become events: what is wanted is validated against what the log last said, and only then becomes changes.

A command is a record of a topic ``command.<name>``, keyed by the guest. The service (``python -m changelog.commands``)
answers each with one record of ``command.outcomes``, and writes that, the changes it leads to, and how far it has read,
in one transaction: all of it appears, or nothing.
"""

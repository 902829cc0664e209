"""Paged attention's partition: tokens that one block of the V2 kernel reduces.

Unit: tokens. The Python constant sizes the buffers that the compiled launcher fills, so it must
equal the launcher's own constant: a limit, not a free knob.
"""

from __future__ import annotations

import re

from muhmod.constants import bindings
from muhmod.model import Found
from muhmod.site import Module, Resolve, Site, nowhere

NAME = re.compile(r"PARTITION_SIZE")


class PartitionSize(Site):
    """A constant bound to a name that holds PARTITION_SIZE, at module, class or function level."""

    name = "partition-size"
    sets = "tokens a partition of paged attention V2"
    needle = b"PARTITION_SIZE"
    pattern = re.compile(rb"PARTITION_SIZE")

    def find(self, module: Module, resolve: Resolve = nowhere) -> list[Found]:
        """One site for each name and scope, and for each launch keyword."""
        return [
            self.found(scope, one.form, one.slots, module, problem=one.problem)
            for scope in module.scopes_at(module.lines_with("PARTITION_SIZE"))
            for one in bindings(module, scope, NAME)
        ]


SITE = PartitionSize()

"""Paged attention's partition: tokens that one block of the V2 kernel reduces.

Unit: tokens. The Python constant sizes the buffers that the compiled launcher fills, so it must
equal the launcher's own constant: a limit, not a free knob.
"""

from __future__ import annotations

import re

from muhmod.constants import Binding, bindings
from muhmod.model import Found
from muhmod.site import Module, Scope, Site

NAME = re.compile(r"PARTITION_SIZE")


class PartitionSize(Site):
    """A constant bound to a name that holds PARTITION_SIZE, at module, class or function level."""

    name = "partition-size"
    sets = "tokens a partition of paged attention V2"
    needle = b"PARTITION_SIZE"
    pattern = re.compile(rb"PARTITION_SIZE")

    def find(self, module: Module) -> list[Found]:
        """One site for each name and place; branches that bind the same name are one."""
        found = []
        for scope in module.scopes_at(module.lines_with("PARTITION_SIZE")):
            groups: dict[tuple[str, int], list[Binding]] = {}
            for binding in bindings(module, scope, NAME):
                groups.setdefault((binding.name, binding.outermost), []).append(binding)
            found += [self._site(scope, group, module) for group in groups.values()]
        return found

    def _site(self, scope: Scope, group: list[Binding], module: Module) -> Found:
        slots = [slot for binding in group for slot in binding.slots]
        return self.found(scope, group[0].form, slots, module)


SITE = PartitionSize()

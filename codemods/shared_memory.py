"""What the tree believes a block's shared memory to be.

Unit: bytes. Kernels that size their buffers by it fail to launch where it is too large, and
waste the card where it is too small.
"""

from __future__ import annotations

import ast
import re

from muhmod.flow import Flow
from muhmod.model import Found
from muhmod.site import Module, Resolve, Scope, Site, make_slot, nowhere, segment_of


class SharedMemory(Site):
    """A function named get_max_shared_memory…; its slots are the values that it returns."""

    name = "shared-memory"
    sets = "bytes of shared memory a block"
    needle = b"get_max_shared_memory"
    pattern = re.compile(rb"\bdef\s+get_max_shared_memory")

    def find(self, module: Module, resolve: Resolve = nowhere) -> list[Found]:
        """One site a function."""
        return [
            self._site(scope, module)
            for scope in module.scopes()
            if not isinstance(scope.node, ast.ClassDef)
            and scope.path.rpartition(".")[2].startswith("get_max_shared_memory")
        ]

    def _site(self, scope: Scope, module: Module) -> Found:
        assert scope.node is not None and not isinstance(scope.node, ast.ClassDef)
        flow = Flow(lambda cell: True).run(scope.node.body)
        slots = [
            make_slot(module, "return", leaf.node, segment_of(leaf.statement, leaf.node), arrivals=arrivals)
            for leaf in flow.leaves
            if (arrivals := flow.arrivals(leaf, ("return",)))
        ]
        literal = all(slot.editable for slot in slots) and bool(slots)
        problem = "" if literal else "; ".join(s.reason for s in slots) or "it returns no value"
        found = self.found(scope, "literal" if literal else "call", slots, module, problem=problem)
        return found._replace(line=scope.node.lineno)


SITE = SharedMemory()

"""The switch that gates every import of a Triton kernel.

Unit: none (a truth value). While it is False, no Triton tile of the tree is ever launched.
"""

from __future__ import annotations

import re

from muhmod.constants import bindings
from muhmod.model import Found
from muhmod.site import Module, Resolve, Site, nowhere

NAME = re.compile(r"^HAS_TRITON$")


class TritonFlag(Site):
    """All bindings of HAS_TRITON in one scope."""

    name = "triton-flag"
    sets = "whether Triton kernels are imported"
    needle = b"HAS_TRITON"
    pattern = re.compile(rb"\bHAS_TRITON\s*(?::[^=\n]+)?:?=(?!=)")

    def find(self, module: Module, resolve: Resolve = nowhere) -> list[Found]:
        """One site a scope: later bindings replace earlier ones."""
        found = []
        for scope in module.scopes_at(module.lines_with("HAS_TRITON")):
            group = [b for b in bindings(module, scope, NAME) if b.form != "parameter-default"]
            if group:
                slots = [slot for binding in group for slot in binding.slots]
                problem = group[0].problem
                found.append(self.found(scope, group[0].form, slots, module, problem=problem))
        return found


SITE = TritonFlag()

"""Rows of Q that a chunked fallback attention takes at a time.

Unit: rows. It bounds the score matrix that the fallback materialises, not a kernel's tile.
"""

from __future__ import annotations

import re

from muhmod.constants import bindings
from muhmod.model import Found
from muhmod.site import Module, Resolve, Site, nowhere

NAME = re.compile(r"^_?Q_CHUNK(_SIZE)?$")


class QChunk(Site):
    """A constant named Q_CHUNK, at module, class or function level."""

    name = "q-chunk"
    sets = "rows of Q a chunk of the fallback attention"
    needle = b"Q_CHUNK"
    pattern = re.compile(rb"\b_?Q_CHUNK(?:_SIZE)?\b")

    def find(self, module: Module, resolve: Resolve = nowhere) -> list[Found]:
        """One site for each name and scope."""
        return [
            self.found(scope, binding.form, binding.slots, module, problem=binding.problem)
            for scope in module.scopes_at(module.lines_with("Q_CHUNK"))
            for binding in bindings(module, scope, NAME)
        ]


SITE = QChunk()

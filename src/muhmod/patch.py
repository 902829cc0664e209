"""Unified diffs that `git apply` and `patch -p1` take, from bytes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

_CONTEXT = 3


def diff(path: str, before: bytes, after: bytes) -> bytes:
    """The patch from `before` to `after` at `path`; empty where they are equal.

    Lines end at `\\n` bytes alone, as git counts them.
    """
    if before == after:
        return b""
    old, new = _lines(before), _lines(after)
    quoted = _quoted(path)
    out = [
        f"diff --git {_side('a', quoted)} {_side('b', quoted)}\n".encode(),
        f"--- {_side('a', quoted)}{_tab(quoted)}\n".encode(),
        f"+++ {_side('b', quoted)}{_tab(quoted)}\n".encode(),
    ]
    for group in _groups(old, new):
        out.append(_header(group))
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                out += _marked(b" ", old[i1:i2])
            else:
                out += _marked(b"-", old[i1:i2])
                out += _marked(b"+", new[j1:j2])
    return b"".join(out)


_Opcode = tuple[str, int, int, int, int]


def _groups(old: list[bytes], new: list[bytes]) -> Iterator[list[_Opcode]]:
    """Hunks with their context. Only the part between the common ends is compared."""
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    matcher = difflib.SequenceMatcher(
        None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False
    )
    codes: list[_Opcode] = [("equal", 0, head, 0, head)] if head else []
    codes += [
        (tag, i1 + head, i2 + head, j1 + head, j2 + head) for tag, i1, i2, j1, j2 in matcher.get_opcodes()
    ]
    if tail:
        codes.append(("equal", len(old) - tail, len(old), len(new) - tail, len(new)))
    return _grouped(codes)


def _grouped(codes: list[_Opcode]) -> Iterator[list[_Opcode]]:
    group: list[_Opcode] = []
    for index, (tag, i1, i2, j1, j2) in enumerate(codes):
        if tag != "equal":
            group.append((tag, i1, i2, j1, j2))
            continue
        first, last = index == 0, index + 1 == len(codes)
        if not first and not last and i2 - i1 <= 2 * _CONTEXT:
            group.append((tag, i1, i2, j1, j2))
            continue
        if not first:
            end = min(i1 + _CONTEXT, i2)
            yield [*group, (tag, i1, end, j1, j1 + end - i1)]
            group = []
        if not last:
            start = max(i1, i2 - _CONTEXT)
            group = [(tag, start, i2, j2 - (i2 - start), j2)]
    if any(code[0] != "equal" for code in group):
        yield group


def _common(a: list[bytes], b: list[bytes]) -> int:
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count


def _lines(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _marked(mark: bytes, lines: Iterable[bytes]) -> list[bytes]:
    out = []
    for line in lines:
        out.append(mark + line)
        if not line.endswith(b"\n"):
            out.append(b"\n\\ No newline at end of file\n")
    return out


def _header(group: list[_Opcode]) -> bytes:
    i1, i2, j1, j2 = group[0][1], group[-1][2], group[0][3], group[-1][4]
    return f"@@ -{_range(i1, i2)} +{_range(j1, j2)} @@\n".encode()


def _range(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _quoted(path: str) -> str:
    """The path as git quotes it: C style where it holds control, quote or non-ASCII bytes."""
    raw = path.encode("utf-8", "surrogateescape")
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in raw):
        return path
    special = {9: "\\t", 10: "\\n", 13: "\\r", 34: '\\"', 92: "\\\\"}
    return '"' + "".join(
        special.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in raw
    ) + '"'  # fmt: skip


def _side(prefix: str, quoted: str) -> str:
    return f'"{prefix}/{quoted[1:]}' if quoted.startswith('"') else f"{prefix}/{quoted}"


def _tab(quoted: str) -> str:
    return "\t" if " " in quoted and not quoted.startswith('"') else ""

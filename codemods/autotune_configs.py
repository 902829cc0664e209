"""The configurations that Triton's autotuner tries on a kernel.

Units: as the kernel's constexpr parameters, warps and stages. An entry that cannot fit fails to
compile at best; each one that can costs a trial run. Special here: the edit is of whole lists.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator

from muhmod.lists import Lists, lists
from muhmod.model import Arrival, Entry, Found, Scalar, Slot
from muhmod.site import Module, Resolve, Scope, Site, describe, dotted, fold, make_slot, nowhere, statements

_PARTIAL = ("functools.partial", "partial")
_MOST_HOPS = 4


class AutotuneConfigs(Site):
    """Every `triton.autotune` (decorator or call) with its list, wherever the list stands."""

    name = "autotune-configs"
    sets = "the configurations that the autotuner tries"
    needle = b"autotune"
    # Of one line that holds the needle.
    pattern = re.compile(
        rb"\btriton\s*\.\s*autotune\b(?!\s*=)|^\s*@[\w.]*autotune\w*\s*\(|[=(]\s*\w+\s*\.\s*autotune\b"
        rb"|^\s*from\s+(?!flashinfer).*\bimport\b.*\bautotune\b|^\s*\w*autotune(?:\s+as\s+\w+)?\s*,\s*$"
    )

    def wanted(self, data: bytes) -> bool:
        """Whether a line of the file imports, decorates with or calls what may be Triton's."""
        at = data.find(self.needle)
        while at >= 0:
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            if self.pattern.search(data[data.rfind(b"\n", 0, at) + 1 : end]):
                return True
            at = data.find(self.needle, end)
        return False

    def find(self, module: Module, resolve: Resolve = nowhere) -> list[Found]:
        """One site an autotune call, under the scope of the kernel that it tunes."""
        names = _autotuners(module, resolve, 0)
        if not names:
            return []
        lines = sorted({line for name in names for line in module.lines_with(name.rpartition(".")[2])})
        decorating = {
            id(part): scope
            for scope in module.scopes()
            for decorator in getattr(scope.node, "decorator_list", ())
            for part in _calls(decorator, lines, names)
        }
        every = {id(part): part for s in module.tree.body for part in _calls(s, lines, names)}
        return [
            self._site(decorating.get(id(call)) or _scope_of(call, module), call, module, resolve)
            for call in sorted(every.values(), key=lambda call: (call.lineno, call.col_offset))
        ]

    def _site(self, scope: Scope, call: ast.Call, module: Module, resolve: Resolve) -> Found:
        value = _configs_argument(call)
        if value is None:
            slot = make_slot(module, "configs", call, call, reason="it has no list")
            return self.found(scope, "expression", [slot], module)
        made = lists(value, module, resolve)
        if made.problem or not made.displays:
            slot = make_slot(module, "configs", value, value, reason=made.problem or "the list has no entry")
            return self.found(scope, made.form, [slot], module)
        slots = _slots(made, module)
        odd = [slot.reason for slot in slots if slot.reason]
        found = self.found(scope, made.form, slots, module, problem=odd[0] if odd else "")
        return found._replace(line=call.lineno, end_line=call.end_lineno or call.lineno)


def _slots(made: Lists, module: Module) -> list[Slot]:
    """For each display a slot `configs`, then one `configs[i]` for each of its entries."""
    slots: list[Slot] = []
    number = 0
    for display in made.displays:
        ways = tuple(
            Arrival(way.conditions) for way in made.ways if any(one is display for one in way.displays)
        )
        slots.append(
            make_slot(
                module, "configs", display, display, entry=Entry((), ()), arrivals=ways, live=bool(ways)
            )
        )
        for element in display.elts:
            if not isinstance(element, ast.Starred):
                slots.append(_entry_slot(module, number, element, ways))
                number += 1
    return slots


def _entry_slot(module: Module, index: int, element: ast.expr, ways: tuple[Arrival, ...]) -> Slot:
    entry = _entry(element)
    reason = "" if entry else f"the list holds {describe(element)}, which is no literal triton.Config"
    return make_slot(
        module, f"configs[{index}]", element, element, entry=entry or Entry((), ()), reason=reason,
        arrivals=ways,
    )  # fmt: skip


def _calls(node: ast.AST, lines: list[int], names: set[str]) -> Iterator[ast.Call]:
    """The calls of one of the names that begin on one of the lines or around them."""
    first = min([getattr(node, "lineno", 0), *(d.lineno for d in getattr(node, "decorator_list", ()))])
    at = bisect_left(lines, first)
    if first and (at == len(lines) or lines[at] > getattr(node, "end_lineno", 0)):
        return
    if isinstance(node, ast.Call) and dotted(node.func) in names and (node.args or node.keywords):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, lines, names)


# What is triton.autotune -----------------------------------------------------------------------


def _autotuners(module: Module, resolve: Resolve, hops: int) -> set[str]:
    """The dotted names that stand for `triton.autotune` in a module: imports, aliases, wrappers."""
    found: set[str] = set()
    for local, (base, level, attr) in module.imports().items():
        if "triton" in (attr or base).split("."):
            found.add(f"{local}.autotune")
        elif "autotune" in attr and _comes_from_triton(base, level, attr, resolve, hops):
            found.add(local)
    if "triton" not in module.imports() and ".autotune" in module.text:
        # However the package came by it: a star import, a placeholder, a conditional import.
        found.add("triton.autotune")
    for _ in range(_MOST_HOPS):
        more = {name for s in statements(module.tree.body) for name in _stands_for(s, found)} - found
        if not more:
            break
        found |= more
    return found


def _comes_from_triton(base: str, level: int, attr: str, resolve: Resolve, hops: int) -> bool:
    if base.split(".")[0] == "triton" and not level:
        return attr == "autotune"
    other = resolve(base, level) if hops < _MOST_HOPS else None
    # Behind one file, relative names mean other files: only absolute ones are followed on.
    return other is not None and attr in _autotuners(
        other[1], lambda name, level: None if level else resolve(name, 0), hops + 1
    )


def _stands_for(statement: ast.stmt, known: set[str]) -> set[str]:
    """The name that the statement makes another name of a known one, or a wrapper around it."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if dotted(value) in known:
            return {name}
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=func, args=[inner, *_])) if (
            dotted(func) in _PARTIAL and dotted(inner) in known
        ):
            return {name}
        case ast.FunctionDef(name=name, body=[*_, ast.Return(value=ast.Call() as call)]) if dotted(
            call.func
        ) in known and (_hands_on(statement, call)):
            return {name}
    return set()


def _hands_on(function: ast.FunctionDef, call: ast.Call) -> bool:
    """Whether the list that a wrapper gives to autotune is one that the wrapper is given."""
    arguments = function.args
    given = {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    starred = [a.value for a in call.args if isinstance(a, ast.Starred)]
    starred += [k.value for k in call.keywords if k.arg is None]
    value = _configs_argument(call)
    through = value is not None and isinstance(value, ast.Name) and value.id in given
    rest = {a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None}
    return through or any(isinstance(part, ast.Name) and part.id in rest for part in starred)


def _scope_of(call: ast.Call, module: Module) -> Scope:
    """A call that is no decorator: the function around it and the name that it is bound to."""
    around = module.scopes_at([call.lineno])[0]
    body = module.tree.body if around.node is None else around.node.body
    for statement in statements(body):
        if isinstance(statement, ast.Assign) and any(part is call for part in ast.walk(statement.value)):
            names = [dotted(target) for target in statement.targets]
            return Scope(names[0] if around.node is None else f"{around.path}.{names[0]}", around.node)
    return around


def _configs_argument(call: ast.Call) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == "configs":
            return keyword.value
    plain = [a for a in call.args if not isinstance(a, ast.Starred)]
    return plain[0] if plain else None


# One entry --------------------------------------------------------------------------------------


def _entry(element: ast.expr) -> Entry | None:
    """The literals of one `triton.Config(…)`; None where it is not one, or not all literal."""
    if not (isinstance(element, ast.Call) and dotted(element.func).split(".")[-1] == "Config"):
        return None
    display, options = _parts(element)
    if not isinstance(display, ast.Dict):
        return None
    values = [
        (key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else "", fold(value))
        for key, value in zip(display.keys, display.values, strict=True)
    ]
    # A hook says nothing about what fits, and new entries are spelled like old ones, with theirs.
    named = [(k.arg or "", fold(k.value)) for k in options if k.arg != "pre_hook"]
    if any(not key or value is None for key, value in [*values, *named]):
        return None
    return Entry(_literal(values), _literal(named))


def _parts(element: ast.Call) -> tuple[ast.expr | None, list[ast.keyword]]:
    """The dict of a Config, by position or as `kwargs`, and its other keywords."""
    if len(element.args) == 1:
        return element.args[0], element.keywords
    kwargs = [k.value for k in element.keywords if k.arg == "kwargs"]
    return (kwargs[0] if kwargs and not element.args else None), [
        k for k in element.keywords if k.arg != "kwargs"
    ]


def _literal(pairs: list[tuple[str, Scalar | None]]) -> tuple[tuple[str, Scalar], ...]:
    return tuple((key, value) for key, value in pairs if value is not None)


SITE = AutotuneConfigs()

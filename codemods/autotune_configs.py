"""The configurations that Triton's autotuner tries on a kernel.

Units: as the kernel's constexpr parameters, warps and stages. An entry that cannot fit fails to
compile at best; each one that can costs a trial run. Special here: the edit is of a whole list.
"""

from __future__ import annotations

import ast
import re

from muhmod.model import Entry, Found, Scalar, Slot
from muhmod.site import Module, Scope, Site, describe, dotted, fold, make_slot


class AutotuneConfigs(Site):
    """Every `triton.autotune` (decorator or call) with its list, wherever the list stands."""

    name = "autotune-configs"
    sets = "the configurations that the autotuner tries"
    needle = b"autotune"
    pattern = re.compile(rb"\btriton\s*\.\s*autotune\s*\(|\bfrom\s+triton\b[^\n]*\bautotune\b")

    def find(self, module: Module) -> list[Found]:
        """One site an autotune call, under the scope of the kernel that it tunes."""
        bare = _imports_autotune(module)
        found = []
        for scope in module.scopes():
            if isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for decorator in scope.node.decorator_list:
                    found += [
                        self._site(scope, call, module)
                        for call in ast.walk(decorator)
                        if isinstance(call, ast.Call) and _is_autotune(call.func, bare)
                    ]
        return found + self._calls(module, bare)

    def _calls(self, module: Module, bare: bool) -> list[Found]:
        """`kernel = triton.autotune(configs=…)(function)` at module level."""
        found = []
        for statement in module.tree.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Call() as call)) if (
                    _is_autotune(call.func, bare)
                ):
                    found.append(self._site(Scope(name, None), call, module))
        return found

    def _site(self, scope: Scope, call: ast.Call, module: Module) -> Found:
        value = _configs_argument(call)
        form, where, statement = _list_of(value, module)
        if where is None:
            place = value if value is not None else call
            shown = f"the list is {describe(place)}" if value is not None else "it has no list"
            if form == "list-variable":
                shown += ", which is bound or used in more than one place"
            slot = make_slot(module, "configs", place, place, reason=shown)
            return self.found(scope, form, [slot], module, problem=shown)
        entries = [_entry(element) for element in where.elts]
        whole = make_slot(module, "configs", where, statement or where, entry=Entry((), ()), reason="")
        slots = [whole, *(
            _entry_slot(module, index, element, entry)
            for index, (element, entry) in enumerate(zip(where.elts, entries, strict=True))
        )]  # fmt: skip
        odd = [describe(e) for e, entry in zip(where.elts, entries, strict=True) if entry is None]
        problem = f"the list holds {odd[0]}" if odd else ""
        return self.found(scope, form, slots, module, problem=problem)


def _entry_slot(module: Module, index: int, element: ast.expr, entry: Entry | None) -> Slot:
    reason = "" if entry else f"{describe(element)} is no literal triton.Config"
    return make_slot(
        module, f"configs[{index}]", element, element, entry=entry or Entry((), ()), reason=reason
    )


def _imports_autotune(module: Module) -> bool:
    return any(
        isinstance(s, ast.ImportFrom)
        and (s.module or "").split(".")[0] == "triton"
        and any(alias.name == "autotune" for alias in s.names)
        for s in module.tree.body
    )


def _is_autotune(func: ast.expr, bare: bool) -> bool:
    name = dotted(func)
    return name == "triton.autotune" or (bare and name == "autotune")


def _configs_argument(call: ast.Call) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == "configs":
            return keyword.value
    return call.args[0] if call.args else None


def _list_of(
    value: ast.expr | None, module: Module
) -> tuple[str, ast.List | None, ast.expr | ast.stmt | None]:
    """The list display behind the argument: inline, or through module-level names."""
    form = "inline-list"
    for _ in range(8):
        match value:
            case ast.List():
                return form, value, None
            case ast.Name(id=name):
                form, bound = "list-variable", _module_binding(name, module)
                if bound is None:
                    return form, None, None
                value = bound
            case ast.ListComp() | ast.GeneratorExp():
                return "comprehension", None, None
            case ast.Call():
                return "call", None, None
            case _:
                return "expression", None, None
    return "expression", None, None


def _module_binding(name: str, module: Module) -> ast.expr | None:
    """The module-level value of a name that is bound once and read once; None for all else."""
    mentions = [n for n in ast.walk(module.tree) if isinstance(n, ast.Name) and n.id == name]
    if len(mentions) != 2:
        return None
    values = [
        s.value
        for s in module.tree.body
        if isinstance(s, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in s.targets)
    ]
    return values[0] if len(values) == 1 else None


def _entry(element: ast.expr) -> Entry | None:
    """The literals of one `triton.Config(…)`; None where it is not one, or not all literal."""
    if not (isinstance(element, ast.Call) and dotted(element.func).split(".")[-1] == "Config"):
        return None
    if len(element.args) != 1 or not isinstance(element.args[0], ast.Dict):
        return None
    display = element.args[0]
    values = [
        (key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else "", fold(value))
        for key, value in zip(display.keys, display.values, strict=True)
    ]
    options = [(k.arg or "", fold(k.value)) for k in element.keywords]
    if any(not key or value is None for key, value in [*values, *options]):
        return None
    return Entry(_literal(values), _literal(options))


def _literal(pairs: list[tuple[str, Scalar | None]]) -> tuple[tuple[str, Scalar], ...]:
    return tuple((key, value) for key, value in pairs if value is not None)


SITE = AutotuneConfigs()

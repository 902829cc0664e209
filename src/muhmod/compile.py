"""A Triton kernel out of a source file, by `ast`: a module that imports only Triton, and its parameters.

Nothing of the tree is run: decorators other than `triton.jit` are left off, of the module's constants only
literals are taken, and where a name or a parameter cannot be told, that is said by its name.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from muhmod.model import Scalar
from muhmod.site import FunctionNode, Module, Resolve, dotted, nowhere, statements

# What stands for `triton` and `triton.language` in sources, however they are imported.
_LANGUAGE = {"tl": "import triton.language as tl", "triton": "import triton"}
# Constants that a source asks torch for: the range of float8_e4m3fn.
_STAND_INS = {"FP8_MIN": "FP8_MIN = tl.constexpr(-448.0)", "FP8_MAX": "FP8_MAX = tl.constexpr(448.0)"}
# Calls of triton.language whose first argument is an address.
_ADDRESSED = {"load", "store", "make_block_ptr", "make_tensor_descriptor", "advance"}
_INDEX = re.compile(r"ids|seqlen|ctxlen|_lens?(_|$)|start|_loc$|table|ind(ex|ices)|num_|count|^cu_", re.I)
_FLOAT32 = re.compile(r"scale|slope|topk_weight|moe_weight|^L$|lse", re.I)
_WHOLE = re.compile(
    r"^(stride|num_|n_|max_|total_|batch|head|philox|top_?k|group)|(size|len|seqlen\w*|numel|tokens)$"
    r"|^[A-Z]{1,2}$|^x$",
    re.I,
)
_REAL = re.compile(r"scale|_p$|eps|cap$|alpha|log2", re.I)
# Sizes that are multiples of 16 in every model: Triton is told so, as it would find out at the launch.
_EVEN = re.compile(r"^stride|^[NK]$|^block_size$")
DIVISIBLE = 16


class Cut(NamedTuple):
    """A kernel cut out: its module's text, its parameters in order, and the functions in it by name."""

    name: str
    line: int
    text: str
    node: ast.FunctionDef
    functions: Mapping[str, ast.FunctionDef]


class Launch(NamedTuple):
    """Where a kernel is launched: its expressions by parameter, as far as they can be told apart."""

    arguments: Mapping[str, ast.expr]

    def literal(self, name: str) -> Scalar | None:
        """The literal that is given for a parameter."""
        match self.arguments.get(name):
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return value
        return None


class Signature(NamedTuple):
    """What Triton is given: types by parameter, values of constants, parameters that are multiples of 16.

    `problem` names the parameter that cannot be given a type or a value.
    """

    types: tuple[tuple[str, str], ...] = ()
    constants: tuple[tuple[str, Scalar | None], ...] = ()
    divisible: tuple[str, ...] = ()
    problem: str = ""


class Uncut(Exception):
    """A kernel cannot be taken out of its file: why."""


# Finding kernels -------------------------------------------------------------------------------


def is_jit(node: ast.AST) -> bool:
    """Whether a definition is a kernel: decorated by something called `jit`."""
    return isinstance(node, ast.FunctionDef) and any(
        dotted(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2] == "jit"
        for d in node.decorator_list
    )


def kernels(module: Module) -> dict[str, list[ast.FunctionDef]]:
    """The module's kernels by name; more than one of a name where branches define it."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for node in statements(module.tree.body):
        if isinstance(node, ast.FunctionDef) and is_jit(node):
            found.setdefault(node.name, []).append(node)
    return found


def launches(node: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """`kernel[grid](…)` below a node: the kernel's name and the call."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Subscript):
            name = dotted(part.func.value)
            if name:
                yield name.rpartition(".")[2], part


def launch(kernel: ast.FunctionDef, call: ast.Call | None) -> Launch:
    """A launch's expressions by parameter: those by keyword, and by position up to the first starred one."""
    if call is None:
        return Launch({})
    given = {k.arg: k.value for k in call.keywords if k.arg}
    for parameter, value in zip(_parameters(kernel), call.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        given.setdefault(parameter.arg, value)
    return Launch(given)


# Cutting ----------------------------------------------------------------------------------------


def cut(module: Module, name: str, resolve: Resolve = nowhere) -> Cut:
    """The kernel with the kernels, constants and imports of Triton's that it uses. Raises Uncut."""
    imports: dict[str, str] = dict(_LANGUAGE)
    constants: dict[str, str] = {}
    functions: dict[str, ast.FunctionDef] = {}
    origin: dict[str, int] = {}
    line = _kernel(module, name).lineno
    todo = [(module, name, resolve)]
    while todo:
        of, wanted, look = todo.pop()
        if wanted in functions:
            if origin[wanted] != id(of):
                raise Uncut(f"{wanted} means two functions in what {name} calls")
            continue
        node = _plain(_kernel(of, wanted), top=wanted == name)
        functions[wanted], origin[wanted] = node, id(of)
        for free in sorted(_free_names(node)):
            if free in imports or free in constants:
                continue
            if free in kernels(of):
                todo.append((of, free, look))
                continue
            text = _import_of_triton(of, free)
            if text:
                imports[free] = text
                continue
            constant = _constant(of, free) or _STAND_INS.get(free, "")
            if constant:
                constants[free] = constant
                continue
            other = _elsewhere(of, free, look)
            if other is None:
                raise Uncut(f"{wanted} uses {free}, which is no kernel, literal or part of Triton")
            if other[1] != free:
                raise Uncut(f"{wanted} uses {free}, imported under another name than {other[1]}")
            todo.append((other[0], free, nowhere))
    body = [*imports.values(), *constants.values(), *(ast.unparse(f) for f in reversed(functions.values()))]
    return Cut(name, line, "\n\n".join(body) + "\n", functions[name], functions)


def _kernel(module: Module, name: str) -> ast.FunctionDef:
    found = kernels(module).get(name, [])
    if len(found) != 1:
        lines = ", ".join(str(node.lineno) for node in found)
        raise Uncut(f"{name} is defined on lines {lines}" if found else f"no kernel {name} stands there")
    return found[0]


def _plain(node: ast.FunctionDef, *, top: bool) -> ast.FunctionDef:
    """The function with `triton.jit` alone, annotated only with `tl.constexpr`, its defaults literals."""
    copy = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(copy, ast.FunctionDef)
    copy.decorator_list = [ast.parse("triton.jit", mode="eval").body]
    copy.returns = None
    constexpr = ast.parse("tl.constexpr", mode="eval").body
    for parameter in _parameters(copy):
        parameter.annotation = constexpr if is_constexpr(parameter) else None
    defaults = [*copy.args.defaults, *(d for d in copy.args.kw_defaults if d is not None)]
    if top:
        copy.args.defaults, copy.args.kw_defaults = [], [None] * len(copy.args.kw_defaults)
    elif not all(_is_plain(value) for value in defaults):
        raise Uncut(f"a default of {node.name} is no literal")
    return copy


def is_constexpr(parameter: ast.arg) -> bool:
    """Whether a parameter is annotated as `tl.constexpr`."""
    note = parameter.annotation
    text = note.value if isinstance(note, ast.Constant) else dotted(note) if note else ""
    return str(text).rpartition(".")[2] == "constexpr"


def _parameters(node: FunctionNode) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _is_plain(node: ast.expr) -> bool:
    """Whether an expression is a literal, a name of triton.language, or made of such."""
    match node:
        case ast.Constant():
            return True
        case ast.UnaryOp(operand=inner):
            return _is_plain(inner)
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            return all(_is_plain(one) for one in elts)
        case ast.BinOp(left=left, right=right):
            return _is_plain(left) and _is_plain(right)
        case ast.Attribute():
            return dotted(node).startswith("tl.")
        case ast.Call(func=func, args=[inner], keywords=[]):
            return dotted(func).rpartition(".")[2] in ("constexpr", "float") and _is_plain(inner)
    return False


def _free_names(node: ast.FunctionDef) -> set[str]:
    bound = {a.arg for a in _parameters(node)} | {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return {name for name in read - bound if not hasattr(builtins, name)}


def _import_of_triton(module: Module, name: str) -> str:
    """The import that binds a name to a part of Triton's, or an empty string."""
    base, level, attr = module.imports().get(name, ("", 0, ""))
    if level or not base or (base.split(".")[0] != "triton" and attr not in _LANGUAGE):
        return ""
    if base.split(".")[0] != "triton":
        return _LANGUAGE[attr] if name == attr else f"{_LANGUAGE[attr].split(' as ')[0]} as {name}"
    return f"from {base} import {attr} as {name}" if attr else f"import {base} as {name}"


def _constant(module: Module, name: str) -> str:
    """The module's one literal binding of a name, as a constant that kernels may read."""
    values = []
    for statement in statements(module.tree.body):
        match statement:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                values.append(value)
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if found == name:
                values.append(value)
    if len(values) != 1 or not _is_plain(values[0]):
        return ""
    text = ast.unparse(values[0])
    return f"{name} = {text if 'constexpr' in text else f'tl.constexpr({text})'}"


def _elsewhere(module: Module, name: str, resolve: Resolve) -> tuple[Module, str] | None:
    """The module of the same tree that a kernel is imported from, and its name there."""
    base, level, attr = module.imports().get(name, ("", 0, ""))
    other = resolve(base, level) if attr else None
    return (other[1], attr) if other and attr in kernels(other[1]) else None


# Types ------------------------------------------------------------------------------------------


def addresses(of: Cut, node: ast.FunctionDef | None = None, _above: tuple[str, ...] = ()) -> set[str]:
    """The parameters that some load, store or block pointer starts from, through names and inner kernels."""
    node = node or of.node
    names = {a.arg for a in _parameters(node)}
    values: dict[str, list[ast.expr]] = {}
    for part in ast.walk(node):
        if isinstance(part, ast.Assign):
            for target in part.targets:
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(part.value)
    todo = [e for call in ast.walk(node) if isinstance(call, ast.Call) for e in _addressed(of, call, _above)]
    found: set[str] = set()
    seen: set[str] = set()
    while todo:
        name = _base(todo.pop())
        if name and name not in seen:
            seen.add(name)
            found |= {name} & names
            todo += values.get(name, [])
    return found


def _addressed(of: Cut, call: ast.Call, above: tuple[str, ...]) -> Iterator[ast.expr]:
    """The arguments of a call that are addresses."""
    name = dotted(call.func)
    last = name.rpartition(".")[2]
    if name.startswith("tl.") and (last in _ADDRESSED or last.startswith("atomic_")):
        yield from call.args[:1]
        yield from (k.value for k in call.keywords if k.arg in ("base", "pointer"))
    elif name in of.functions and name not in above:
        inner = of.functions[name]
        wanted = addresses(of, inner, (*above, name))
        yield from (v for a, v in zip(_parameters(inner), call.args, strict=False) if a.arg in wanted)
        yield from (k.value for k in call.keywords if k.arg in wanted)


def _base(node: ast.expr) -> str:
    """The name that an address is reckoned from: the leftmost of a sum."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub()):
            return _base(left)
        case ast.Call(func=ast.Attribute(attr="to", value=inner)):
            return _base(inner)
        case ast.Call(args=[inner, *_]) if dotted(node.func).rpartition(".")[2] in ("advance", "cast"):
            return _base(inner)
    return ""


def signature(
    of: Cut, at: Launch, element: str, values: Mapping[str, Scalar | None], whole: FunctionNode
) -> Signature:
    """The kernel's types and constants.

    `element`: Triton's name of the data's type; `values`: constants by parameter; `whole`: the definition as
    the source has it, with its annotations and defaults.
    """
    pointers, read = addresses(of), {n.id for n in ast.walk(of.node) if isinstance(n, ast.Name)}
    divided = _divided(of.node)
    defaults = _defaults(whole)
    notes = {a.arg: ast.unparse(a.annotation) if a.annotation else "" for a in _parameters(whole)}
    types: list[tuple[str, str]] = []
    constants: list[tuple[str, Scalar | None]] = []
    names = [a.arg for a in _parameters(of.node)]
    units = _units(names, at)
    for parameter in _parameters(of.node):
        name = parameter.arg
        if parameter.annotation is not None or name in units:
            known, value = (True, 1) if name in units else _value(name, at, values, defaults)
            if not known:
                return Signature(problem=f"the value of {name} is not known")
            constants.append((name, value))
            types.append((name, "constexpr"))
            continue
        kind = _type(name, at, element, name in pointers, notes.get(name, ""), name in divided)
        if not kind and name in read:
            return Signature(problem=f"the type of {name} is not known")
        types.append((name, kind or "i32"))
    even = [name for name, kind in types if kind[0] == "*" or (kind[0] == "i" and _EVEN.search(name))]
    return Signature(tuple(types), tuple(constants), tuple(even))


def _value(
    name: str, at: Launch, values: Mapping[str, Scalar | None], defaults: Mapping[str, Scalar | None]
) -> tuple[bool, Scalar | None]:
    """Whether a constant's value is known, and which: of the configuration, the launch, the default."""
    if name in values:
        return True, values[name]
    literal = at.literal(name)
    if literal is not None:
        return True, literal
    if name in defaults:
        return True, defaults[name]
    # What is switched on for quantised values, biases and the like: off.
    return bool(
        re.match(r"(use|has|enable|return|is|per|skip|fuse|mul|naive)_|\w*_?(padded|bias)$", name, re.I)
    ), False


def _defaults(node: FunctionNode) -> dict[str, Scalar | None]:
    arguments = [*node.args.posonlyargs, *node.args.args]
    last = len(node.args.defaults)
    pairs = [*zip(arguments[len(arguments) - last :], node.args.defaults, strict=True),
             *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]  # fmt: skip
    return {
        a.arg: d.value
        for a, d in pairs
        if isinstance(d, ast.Constant) and isinstance(d.value, (bool, int, float, str, type(None)))
    }


def _units(names: list[str], at: Launch) -> set[str]:
    """The strides of 1: of a tensor's last dimension, by the launch; else the last of a tensor's strides."""
    last: dict[str, int] = {}
    axes: dict[str, tuple[str, int]] = {}
    for name in names:
        match at.arguments.get(name):
            case ast.Call(
                func=ast.Attribute(attr="stride", value=tensor), args=[ast.Constant(value=int(axis))]
            ):
                axes[name] = (ast.unparse(tensor), axis)
                last[axes[name][0]] = max(axis, last.get(axes[name][0], 0))
    found = {name for name, (tensor, axis) in axes.items() if axis == last[tensor] and axis}
    # Strides that come in a tuple are named for their tensor by a letter, in the order of its dimensions.
    strides = [name for name in names if re.fullmatch(r"stride_[a-z]+", name)]
    if not axes and not any(name in at.arguments for name in strides):
        for name, after in zip(strides, [*strides[1:], ""], strict=True):
            if after[:-1] != name[:-1]:
                found.add(name)
    return found


def _type(name: str, at: Launch, element: str, address: bool, note: str, divided: bool) -> str:
    """Triton's type of a parameter that is no constant; empty where it cannot be told."""
    if address or name.endswith("_ptr"):
        if _INDEX.search(name):
            return "*i32"
        return "*fp32" if _FLOAT32.search(name) else f"*{element}"
    if note in ("tl.int64", "tl.int32", "tl.float32", "int", "float"):
        return {"tl.int64": "i64", "tl.float32": "fp32", "float": "fp32"}.get(note, "i32")
    given = at.arguments.get(name)
    if given is not None and re.search(r"\.(stride|numel|size)\(|\.shape\[|^len\(|^\d+$", ast.unparse(given)):
        return "i32"
    if _REAL.search(name):
        return "fp32"
    return "i32" if _WHOLE.search(name) or divided else ""


def _divided(node: ast.FunctionDef) -> set[str]:
    """Names that only a whole number can be: in `//`, `%`, cdiv, range."""
    found: set[str] = set()
    for part in ast.walk(node):
        sides: list[ast.expr] = []
        if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.FloorDiv, ast.Mod)):
            sides = [part.left, part.right]
        elif isinstance(part, ast.Call) and dotted(part.func).rpartition(".")[2] in ("cdiv", "range"):
            sides = list(part.args)
        found |= {side.id for side in sides if isinstance(side, ast.Name)}
    return found

"""Every call into a precompiled module: from which function, what it calls, which arguments are tunable.

Precompiled is what the tree's Python cannot change: `torch.ops.NAMESPACE.OP` (but not torch's own namespaces,
nor an operation that the tree registers in Python); what is imported from a package of `COMPILED` or from one
that a rule pack names in `modules`; and an extension module of the package itself (`_C` and the like, or one
that is there as a shared object only). A call through a name, an attribute of `self`, a partial or another
file's import of it counts too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from muhmod.launches import short
from muhmod.names import EXTENSION, Index, Names
from muhmod.search import Reading
from muhmod.site import dotted, fold

How = Literal["calls", "constructs", "hands on"]

# Packages of kernels that are built outside of the tree.
COMPILED = frozenset({
    "ixformer", "flash_attn", "flash_attn_interface", "flash_attn_2_cuda", "vllm_flash_attn", "xformers",
    "flashinfer", "flash_mla", "deep_gemm", "deep_ep", "pplx_kernels", "sgl_kernel", "aiter", "awq_ext",
    "exllamav2_ext", "causal_conv1d", "causal_conv1d_cuda", "mamba_ssm", "selective_scan_cuda",
    "intel_extension_for_pytorch", "torch_npu", "habana_frameworks", "bitsandbytes",
    "fast_hadamard_transform", "vllm_hpu_extension",
})  # fmt: skip
# What packs name in `modules` though its kernels are written in the tree, or are torch's own.
_OPEN = frozenset({"torch", "triton", "numpy"})
# Namespaces of torch.ops that are torch's own, or hold no operation.
_TORCH = frozenset({"aten", "prim", "prims", "higher_order", "c10d", "_c10d_functional", "rngprims",
                    "inductor", "load_library", "loaded_libraries", "import_module"})  # fmt: skip
_EXTENSION = re.compile(f"{EXTENSION.pattern}|vllm_flash_attn")
_EXTENSION_WORD = re.compile(_EXTENSION.pattern.encode()).fullmatch
_REGISTERS = (b"custom_op(", b".define(")
# Calls that look at an operation and hand nothing on.
_LOOKS = {
    "hasattr",
    "getattr",
    "setattr",
    "isinstance",
    "issubclass",
    "callable",
    "print",
    "str",
    "repr",
    "id",
    "type",
}
_TUNED = re.compile(
    r"block|block_?size\w*|block_[mnkqd]|block_(?:dim|model)\w*|\w*num_warps|\w*num_stages|\w*partition(?:_size)?|"
    r"\w*tiles?(?:_\w+)?|\w*chunk(?:_size|s)?|q_chunk\w*|(?:num_)?splits?|split_k\w*|\w*num_splits|group_size\w*|"
    r"\w*_block_size|num_threads\w*|\w*max_num_partitions|\w*workspace_size",
    re.IGNORECASE,
)  # fmt: skip


class Argument(NamedTuple):
    """One argument: its keyword, its text, and why it is tunable (empty where it is not)."""

    name: str
    text: str
    tunable: str = ""


class Wrapper(NamedTuple):
    """One call into a precompiled module. `calls`: as the source writes it; `target`: by its full name."""

    file: str
    line: int
    scope: str
    calls: str
    target: str
    how: How = "calls"
    arguments: tuple[Argument, ...] = ()

    @property
    def tunable(self) -> tuple[Argument, ...]:
        """The arguments that a rule could set."""
        return tuple(argument for argument in self.arguments if argument.tunable)


class Stub(NamedTuple):
    """A function beside wrappers that only raises: what it stands for is not there."""

    file: str
    line: int
    scope: str


class Compiled:
    """What is precompiled, as one tree sees it."""

    def __init__(self, reading: Reading, modules: Iterable[str] = ()) -> None:
        self.reading = reading
        self.packages = COMPILED | ({*modules} - _OPEN)
        # A folder of that name in the tree is Python of its own.
        self.inside = {file.split("/")[0].removesuffix(".py") for file in reading.files}
        self.registered: set[str] = set()
        self._words = {name.encode() for name in self.packages}

    def wanted(self, data: bytes, imported: frozenset[bytes]) -> bool:
        """Whether a file may name something precompiled, or register it: by its bytes, its imports' words."""
        torch = b"torch.ops" in data or b"import torch as" in data or {b"torch", b"ops"} <= imported
        if torch or any(word in data for word in _REGISTERS):
            return True
        return not self._words.isdisjoint(imported) or any(map(_EXTENSION_WORD, imported))

    def learn(self, index: Index) -> None:
        """The operations that the tree registers in Python."""
        for module in index.modules.values():
            for call, _ in module.calls:
                self.registered |= {*_registered(call)}

    def target(self, names: set[str]) -> str:
        """The precompiled meaning among several; empty where there is none."""
        return min((name for name in names if self.is_compiled(name)), default="")

    def is_compiled(self, name: str) -> bool:
        """Whether a dotted name is a function (or class) of a precompiled module."""
        parts = name.split(".")
        if parts[:2] == ["torch", "ops"]:
            return len(parts) > 3 and parts[2] not in _TORCH and not self._is_python(parts[2], parts[3])
        if parts[0] in self.reading.names:
            return any(
                _EXTENSION.fullmatch(part) and not (at == 0 and part in self.inside)
                for at, part in enumerate(parts[1:-1])
            )
        return len(parts) > 1 and parts[0] in self.packages

    def _is_python(self, namespace: str, name: str) -> bool:
        """Whether the tree registers the operation itself; without a namespace it is not an extension's."""
        bare = name in self.registered and not _EXTENSION.fullmatch(namespace)
        return bare or f"{namespace}::{name}" in self.registered


def _registered(call: ast.Call) -> Iterator[str]:
    """The operation that a call registers: `…custom_op("x", …)`, `custom_op("ns::x")`, `define("x(…)")`."""
    callee = dotted(call.func).rpartition(".")[2]
    if "custom_op" not in callee and callee != "define":
        return
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("op_name", "name", "schema")]
    for value in (*call.args[:1], *named):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            name = value.value.partition("(")[0].strip()
            yield name


def wrappers(
    index: Index, compiled: Compiled, fed: Mapping[str, Mapping[str, str]]
) -> tuple[tuple[Wrapper, ...], tuple[Stub, ...]]:
    """All calls into precompiled modules, and the stubs beside them, by file and line.

    `fed`: for each file the names that tuning sites bind there, with the site.
    """
    found: set[Wrapper] = set()
    for module in index.modules.values():
        own = fed.get(module.file, {})
        for call, scope in module.calls:
            wrapper = _wrapper(index, compiled, module, call, scope, own)
            if wrapper is not None:
                found.add(wrapper)
    files = {wrapper.file for wrapper in found}
    stubs = [stub for module in index.modules.values() if module.file in files for stub in _stubs(module)]
    return tuple(sorted(found)), tuple(sorted(stubs))


def _wrapper(
    index: Index, compiled: Compiled, module: Names, call: ast.Call, scope: str, own: Mapping[str, str]
) -> Wrapper | None:
    target = compiled.target(index.meanings(module, call.func, scope))
    if target:
        last = target.rpartition(".")[2]
        how: How = "constructs" if re.match(r"[A-Z][a-z]|[A-Z]+[a-z]", last) else "calls"
        return _made(module, call, scope, short(call.func), target, how, call.args, own)
    if dotted(call.func) in _LOOKS:
        return None
    for value in (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(value, (ast.Name, ast.Attribute)):
            target = compiled.target(index.meanings(module, value, scope))
            if target and not _is_module(module, target):
                rest = [arg for arg in call.args if arg is not value]
                return _made(module, call, scope, short(value), target, "hands on", rest, own)
    return None


def _is_module(module: Names, target: str) -> bool:
    """Whether the file reads attributes of what it imports under that name: then it is no function."""
    local = target.rpartition(".")[2]
    return (
        any(
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and target in module.meanings(node.value, scope)
            for reads in module.reads.values()
            for node, scope in reads
        )
        or not local
    )


def _made(
    module: Names,
    call: ast.Call,
    scope: str,
    calls: str,
    target: str,
    how: How,
    values: list[ast.expr],
    own: Mapping[str, str],
) -> Wrapper:
    pairs = [("", value) for value in values] + [(k.arg or "**", k.value) for k in call.keywords]
    skipped = calls if how == "hands on" else None
    arguments = tuple(
        Argument(name, short(value), _why(name, value, own))
        for name, value in pairs
        if short(value) != skipped
    )
    return Wrapper(module.file, call.lineno, scope, calls, target, how, arguments)


def _why(name: str, value: ast.expr, own: Mapping[str, str]) -> str:
    """Why an argument is tunable; empty where it is not."""
    folded = fold(value)
    if isinstance(folded, (int, float)) and not isinstance(folded, bool):
        return "a literal"
    for node in ast.walk(value):
        match node:
            case ast.Name(id=known) if known in own:
                return f"set by {own[known]}"
            case ast.Subscript(slice=ast.Constant(value=str() as key)):
                return f"the key {key} of {short(node.value)}"
            case ast.Call(
                func=ast.Attribute(attr="get" | "pop"), args=[ast.Constant(value=str() as key), *_]
            ):
                return f"the key {key} of {short(node.func.value)}"  # type: ignore[attr-defined]
    if _TUNED.fullmatch(name):
        return "by its keyword"
    last = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return "by its name" if _TUNED.fullmatch(last.lstrip("_")) else ""


def _stubs(module: Names) -> Iterator[Stub]:
    for node, path in module.functions:
        body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
        if not isinstance(node, ast.ClassDef) and len(body) == 1 and isinstance(body[0], ast.Raise):
            raised = body[0].exc.func if isinstance(body[0].exc, ast.Call) else body[0].exc
            if raised is not None and dotted(raised) == "NotImplementedError":
                yield Stub(module.file, node.lineno, path)

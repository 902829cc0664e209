"""Rule packs, hardware and model facts: the only module that reads TOML.

Every key is checked, every number converted to its fact's unit and held against a sane range; an
error names the file, the line and the key.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from muhmod.derive.work import Facts
from muhmod.errors import UsageError, nearest
from muhmod.model import LADDER, LADDER_KEYS, OPTIONS, TILE_KEYS, Candidate, Scalar, State, Status

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RULES_SCHEMA = "muhmod/rules/1"
ARCHITECTURES = ("pascal", "volta", "turing", "ampere", "ada", "hopper", "cdna3", "ivcore")

# Fact: (unit, least, most) for numbers; (unit, allowed values) for words; ("bool",) for flags.
QUANTITIES: dict[str, tuple[Any, ...]] = {
    "platform": ("platform", ("cuda", "rocm", "cpu", "xpu", "hpu", "tpu")),
    "architecture": ("generation", ARCHITECTURES),
    "compute_capability": ("major*10+minor", 10, 200),
    "warp_size": ("threads", 8, 128),
    "sm_count": ("multiprocessors", 1, 1024),
    "smem_per_block": ("bytes", 1024, 2**22),
    "smem_per_sm": ("bytes", 1024, 2**22),
    "smem_reserved": ("bytes", 0, 2**16),
    "memory_bandwidth": ("GB/s", 1, 100_000),
    "memory_latency": ("ns", 1, 100_000),
    "registers_per_sm": ("32-bit registers", 1024, 2**22),
    "max_registers_per_thread": ("32-bit registers", 16, 1024),
    "max_threads_per_block": ("threads", 32, 4096),
    "max_threads_per_sm": ("threads", 32, 8192),
    "max_blocks_per_sm": ("blocks", 1, 256),
    "l2_cache": ("bytes", 1024, 2**34),
    "l2_bandwidth_per_sm": ("GB/s", 1, 10_000),
    "peak_fp16": ("TFLOP/s", 0.1, 100_000),
    "kernel_launch": ("us", 0.01, 10_000),
    "block_start": ("ns", 1, 1_000_000),
    "block_exit": ("ns", 1, 1_000_000),
    "block_launch": ("ns", 0.001, 10_000),
    "async_copy": ("bool",),
    "device_memory": ("bytes", 2**20, 2**50),
    "paged_attention_partition": ("tokens", 16, 65536),
    "head_dim": ("elements", 1, 4096),
    "num_query_heads": ("heads", 1, 4096),
    "num_kv_heads": ("heads", 1, 4096),
    "num_experts": ("experts", 1, 65536),
    "experts_per_token": ("experts", 1, 1024),
    "hidden_size": ("elements", 1, 2**20),
    "moe_intermediate_size": ("elements", 1, 2**20),
    "tensor_parallel": ("devices", 1, 1024),
    "dtype": ("dtype", ("float16", "bfloat16", "float32", "float8")),
    "max_num_batched_tokens": ("tokens", 1, 2**24),
    "max_model_len": ("tokens", 1, 2**30),
}
_BYTES: dict[str, float] = {"bytes": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_UNITS: dict[str, dict[str, float]] = {
    "bytes": _BYTES,
    "GB/s": {"GB/s": 1, "MB/s": 1e-3, "TB/s": 1e3},
    "ns": {"ns": 1, "us": 1e3, "ms": 1e6},
    "us": {"us": 1, "ns": 1e-3, "ms": 1e3},
    "TFLOP/s": {"TFLOP/s": 1, "GFLOP/s": 1e-3, "PFLOP/s": 1e3},
}
_QUANTITY = r"\s*([+-]?[\d_]+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(.*?)\s*"
# What a configuration may hold, and of which kind.
_CONFIG: dict[str, Any] = {
    "rules": str, "hardware": str, "model": str, "output-format": str, "lock": str, "color": str,
    "tree": (str, list), "select": (str, list), "ignore": (str, list), "set": (str, list),
    "allow-dirty": bool, "allow-staged": bool, "jobs": int,
}  # fmt: skip
_STATUSES: tuple[Status, ...] = ("measured", "documented", "assumed")
_PACK_KEYS = {"schema", "title", "extends", "hardware", "model", "packages", "modules", "choose", "sites"}
_SITE_KEYS = {"site", "scope", "beside", "slots", "remove", "guards", "when_guard_false",
              "when_absent", "expect", "depends_on", "emit", "require_reach"}  # fmt: skip
_SLOT_KEYS = {"derive", "value", "reason", "when_absent"}
# Guard: (the key that says what it is about, the keys that it needs beside it).
_GUARDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "implemented": ("symbol", ()),
    "stub": ("symbol", ()),
    "exists": ("symbol", ()),
    "equals": ("symbol", ("value",)),
    "file": ("file", ()),
    "importable": ("package", ()),
    "formula": ("formula", ()),
    "state": ("site", ("states",)),
}
# What a list of configurations may hold, for a formula.
_OPTIONS = ("BLOCK_M", "BLOCK_N", "PRE_LOAD_V", "waves_per_eu", "num_warps", "num_stages")


class SlotRule(NamedTuple):
    """What sets a slot: a derivation by name, or a literal of the pack's with its reason.

    `when_absent`: whether a site without the slot is an `error`, or `ok`, or it is to `add` the slot.
    """

    derive: str
    value: Scalar | None = None
    reason: str = ""
    when_absent: str = "error"


class GuardRule(NamedTuple):
    """A condition of the closed set that `guards` knows.

    `about`: a name, file, package, formula or rule; `value`: of `equals`; `states`: of `state`; `negated`: it
    asks for the contrary; `needs`: the rules that must be decided before.
    """

    guard: str
    about: str
    value: Scalar | None = None
    states: tuple[str, ...] = ()
    negated: bool = False
    needs: tuple[str, ...] = ()

    def table(self) -> dict[str, Any]:
        """The guard as a pack spells it."""
        out: dict[str, Any] = {"guard": self.guard, _GUARDS[self.guard][0]: self.about}
        out |= {"value": self.value} if self.value is not None else {}
        out |= {"states": list(self.states)} if self.states else {}
        return out | ({"not": True} if self.negated else {})


class Rule(NamedTuple):
    """One site rule: which site, bound to which scope, what its slots become.

    `file`: the one file that counts, where a person accepted a place among several; "" for any.
    """

    name: str
    site: str
    scope: str
    slots: Mapping[str, SlotRule] = {}
    beside: str = ""
    remove: bool = False
    guards: tuple[GuardRule, ...] = ()
    when_guard_false: str = "error"
    when_absent: str = "error"
    expect: int = 1
    depends_on: tuple[str, ...] = ()
    file: str = ""
    # What a generated ladder sets, where the rule has one emitted.
    keys: tuple[str, ...] = ()
    # What it sets in place where no ladder can stand, and why it does so on the tree at hand.
    leaves: Mapping[str, SlotRule] = {}
    instead: str = ""
    # Only what is shown to reach a kernel is set.
    require_reach: bool = False

    @property
    def adds(self) -> tuple[str, ...]:
        """The keys that it adds to dicts that lack them."""
        return tuple(name for name, slot in self.slots.items() if slot.when_absent == "add")

    @property
    def awaits(self) -> tuple[str, ...]:
        """The rules that must be decided before this one."""
        return (*self.depends_on, *(name for guard in self.guards for name in guard.needs))


class Pack(NamedTuple):
    """A rule pack with its facts."""

    name: str
    title: str
    path: str
    hardware: str
    model: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    rules: tuple[Rule, ...]
    facts: Facts
    text: str = ""
    # Every file that the pack was made from, by a name that is the same on any machine.
    files: tuple[tuple[str, Path], ...] = ()
    # What the command line put in the place of the pack's own.
    overridden: bool = False


class Platform(NamedTuple):
    """What a source's tests of its platform come to.

    `asks`: functions by last name; `names`: dotted names that hold something, or None; `never`: enumeration
    members, `unloaded`: modules (dotted, from the package), `devices`: kinds of device, that belong to other
    platforms; `modules`: what can be imported; `capability`: major*10+minor, 0 where it is not known.
    """

    name: str = ""
    title: str = ""
    asks: Mapping[str, bool] = {}
    names: Mapping[str, bool] = {}
    never: frozenset[str] = frozenset()
    unloaded: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    capability: int = 0
    devices: frozenset[str] = frozenset()


PLATFORM_SCHEMA = "muhmod/platform/1"


def platform(name: str, modules: Iterable[str] = (), capability: int = 0) -> Platform:
    """The platform of that name or path. Raises UsageError."""
    document = _read(_locate(name, "platforms", "platform"))
    data = document.check(document.data, ("schema", "title", "asks", "names", "never"))
    if data.get("schema") != PLATFORM_SCHEMA:
        raise document.fail(f"schema must be {PLATFORM_SCHEMA!r}", "schema")
    tables = {}
    for key in ("asks", "names"):
        table = data.get(key, {})
        if not isinstance(table, dict):
            raise document.fail("is no table", key)
        for word, value in table.items():
            if not isinstance(value, bool):
                raise document.fail("must be true or false", key, word)
        tables[key] = table
    never = document.check(data.get("never", {}), ("members", "modules", "devices"), "never")
    return Platform(
        document.path.stem, str(data.get("title", "")), tables["asks"], tables["names"],
        frozenset(_words(document, never, "members")), frozenset(_words(document, never, "modules")),
        frozenset(modules), capability, frozenset(_words(document, never, "devices")),
    )  # fmt: skip


def platform_of(pack: Pack, named: str = "") -> Platform:
    """The platform of a pack's hardware, or the named one with its modules and card. Raises UsageError."""
    capability = pack.facts.get("compute_capability")
    level = capability if isinstance(capability, int) else 0
    word = named or str(pack.facts.get("platform"))
    if not named and word not in builtin("platforms"):
        return Platform(modules=frozenset(pack.modules), capability=level)
    return platform(word, pack.modules, level)


class _Document(NamedTuple):
    """A TOML file with the means to point into it."""

    path: Path
    text: str
    data: dict[str, Any]

    def fail(self, message: str, *keys: str, hint: str = "", line: int = 0) -> UsageError:
        """An error at the key of a row that begins at a line, else at that of the dotted key."""
        line = _line_in_row(self.text, line, keys[-1]) if line else _line_of(self.text, keys)
        where = f"{self.path.name}:{line}" if line else self.path.name
        key = f" [{'.'.join(keys)}]" if keys else ""
        return UsageError(f"{where}:{key} {message}", hint)

    def check(self, table: object, allowed: Iterable[str], *keys: str, line: int = 0) -> dict[str, Any]:
        """The table, if it is one and holds only allowed keys."""
        if not isinstance(table, dict):
            raise self.fail("is no table", *keys, line=line)
        for key in table:
            if key not in set(allowed):
                raise self.fail(f"unknown key {key!r}{nearest(key, allowed)}", *keys, key, line=line)
        return table


_NATURAL = {"BLOCK": "prefill_block", "NUM_WARPS": "prefill_warps", "BLOCK_SIZE_M": "moe_block_m",
            "return": "shared_memory", "configs": "attention_configs", LADDER: "moe_ladder"}  # fmt: skip


def natural_derivation(slot: str) -> str:
    """The derivation that knows a slot's limits; empty where none does."""
    return "partition_size" if "PARTITION_SIZE" in slot else _NATURAL.get(slot, "")


def builtin(kind: str) -> dict[str, Path]:
    """The packs (`""`), `hardware` or `models` that ship with muhmod, by name."""
    folder = Path(_rules_folder()) / kind
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def load(
    name: str,
    *,
    hardware: str = "",
    model: str = "",
    settings: Sequence[str] = (),
) -> Pack:
    """The pack of that name or path, with its facts.

    `hardware` and `model` (names or paths) replace the pack's; `settings` are `fact=value` words.
    Raises UsageError.
    """
    document = _pack(_locate(name, "", "rule pack"))
    line = [*_parents(document), document]
    data = {key: value for one in line for key, value in one.data.items()}
    base = document.path.parent
    overridden = bool(hardware or model or settings)
    hardware = hardware or _text(document, data, "hardware")
    model = model or _text(document, data, "model")
    claims: dict[str, tuple[Candidate, ...]] = {}
    paths = [one.path for one in reversed(line)]
    for word, kind in ((hardware, "hardware"), (model, "models")):
        paths.append(_locate(word, kind, kind.rstrip("s"), base))
        claims.update(_facts(_read(paths[-1])))
    claims.update(_settings(settings))
    units = {key: QUANTITIES[key][0] for key in claims}
    choices = {key: choice for one in line for key, choice in _choices(one, claims).items()}
    rules = {key: (one, rule) for one in line for key, rule in _rules(one).items()}
    if not rules:
        raise document.fail("the pack has no [sites]", "sites")
    return Pack(
        name=document.path.stem,
        title=str(data.get("title", "")),
        path=str(document.path),
        hardware=Path(hardware).name.removesuffix(".toml"),
        model=Path(model).name.removesuffix(".toml"),
        packages=tuple(_words(document, data, "packages")) or ("vllm",),
        modules=tuple(_words(document, data, "modules")),
        rules=_referring(rules),
        facts=Facts(units, claims, choices),
        text=document.text,
        files=tuple((_portable(path), path) for path in paths),
        overridden=overridden,
    )


def _pack(path: Path) -> _Document:
    """A rule pack's file, its keys and schema checked."""
    document = _read(path)
    data = document.check(document.data, _PACK_KEYS)
    if data.get("schema") != RULES_SCHEMA:
        raise document.fail(f"schema must be {RULES_SCHEMA!r}", "schema")
    return document


def _parents(document: _Document) -> list[_Document]:
    """The rule packs that this one extends, the first of them first."""
    line = [document]
    while "extends" in line[0].data:
        name = _text(line[0], line[0].data, "extends")
        parent = _pack(_locate(name, "", "rule pack", line[0].path.parent))
        if parent.path in [one.path for one in line]:
            raise document.fail(f"{name} extends itself, in the end", "extends")
        line.insert(0, parent)
    return line[:-1]


def _rules(document: _Document) -> dict[str, Rule]:
    sites = document.data.get("sites", {})
    if not isinstance(sites, dict):
        raise document.fail("the pack has no [sites]", "sites")
    return {name: _rule(document, name, table) for name, table in sites.items()}


def _referring(rules: dict[str, tuple[_Document, Rule]]) -> tuple[Rule, ...]:
    """The rules, once each waits only for others that are there and do not wait for it."""
    known = {name: rule for name, (_, rule) in rules.items()}
    for name, (document, rule) in rules.items():
        guards = tuple(_resolved(document, rule, number, known) for number in range(len(rule.guards)))
        known[name] = rule._replace(guards=guards)
    for name, rule in known.items():
        document = rules[name][0]
        for other in rule.depends_on:
            if other not in known:
                raise document.fail(
                    f"depends on an unknown rule {other!r}{nearest(other, known)}",
                    "sites",
                    name,
                    "depends_on",
                )
        after, seen = [*rule.awaits], set[str]()
        while after:
            other = after.pop()
            if other == name:
                key = "depends_on" if rule.depends_on else "guards"
                raise document.fail("depends on itself, in the end", "sites", name, key)
            if other not in seen:
                seen.add(other)
                after += known[other].awaits
    return tuple(known.values())


def _resolved(document: _Document, rule: Rule, number: int, rules: Mapping[str, Rule]) -> GuardRule:
    """A guard with the rules that it needs. Raises UsageError where it names what is not there."""
    guard = rule.guards[number]
    keys = ("sites", rule.name, "guards", _GUARDS[guard.guard][0])
    line = _guard_line(document.text, keys[:3], number)
    if guard.guard == "state":
        if guard.about not in rules:
            raise document.fail(
                f"unknown rule {guard.about!r}{nearest(guard.about, rules)}", *keys, line=line
            )
        return guard._replace(needs=(guard.about,))
    if guard.guard != "formula":
        return guard
    from muhmod import formula

    needs = []
    for name in formula.names(formula.parse(guard.about)):
        head, dot, slot = name.rpartition(".")
        other = next((key for key in rules if key.replace("-", "_") == head), "") if dot else rule.name
        if not other:
            shown = nearest(head.replace("_", "-"), rules)
            raise document.fail(f"unknown rule {head!r}{shown}", *keys, line=line)
        if rules[other].keys and slot in rules[other].keys:
            raise document.fail(f"{name} is set by a ladder: it has no one value", *keys, line=line)
        slots = [key for key in rules[other].slots if key not in (LADDER, "configs")]
        slots += _OPTIONS if "configs" in rules[other].slots and not dot else ()
        allowed = slots if dot else [*slots, *QUANTITIES]
        if slot not in allowed:
            what = f"{other} sets no slot" if dot else "unknown fact or slot"
            hint = nearest(slot, allowed) if dot or "; did" in nearest(slot, allowed) else ""
            said = hint or f"; slots here: {', '.join(slots) or 'none'}"
            raise document.fail(f"{what} {slot!r}{said}", *keys, line=line)
        needs += [other] if dot else []
    return guard._replace(needs=tuple(dict.fromkeys(needs)))


def in_order(rules: Iterable[Rule]) -> list[Rule]:
    """The rules, each behind those that it waits for; else as they come."""
    left = list(rules)
    out: dict[str, Rule] = {}
    while left:
        here = {rule.name for rule in left}
        ready = next(rule for rule in left if not here & {*rule.awaits})
        left.remove(ready)
        out[ready.name] = ready
    return list(out.values())


def _portable(path: Path) -> str:
    """A name for an input that does not change with the machine: shipped files by their package."""
    folder = Path(_rules_folder())
    inside = path.is_relative_to(folder)
    return f"muhmod.rules/{path.relative_to(folder).as_posix()}" if inside else str(path)


def line_of(pack: Pack, rule: str) -> int:
    """The line of a rule in its pack's file; 1 where the pack has it no more."""
    return max(1, _line_of(pack.text, ("sites", rule)))


def load_facts(name: str, kind: str) -> dict[str, tuple[Candidate, ...]]:
    """The claims of one `hardware` or `models` file, by fact."""
    return _facts(_read(_locate(name, kind, kind.rstrip("s"))))


def hardware(name: str, settings: Iterable[str] = ()) -> Facts:
    """The facts of one card alone (a shipped name or a path), with `fact=value` words over them."""
    claims = load_facts(name, "hardware") | _settings(settings)
    return Facts({key: QUANTITIES[key][0] for key in claims}, claims)


def config(path: Path) -> dict[str, Any]:
    """The `[tool.muhmod]` table of a pyproject.toml, or all of a muhmod.toml; unknown keys are errors."""
    document = _read(path)
    table: Any = document.data
    if path.name == "pyproject.toml":
        table = table.get("tool", {}).get("muhmod", {})
    found = dict(document.check(table, _CONFIG))
    for key, value in found.items():
        if not isinstance(value, _CONFIG[key]) or (_CONFIG[key] is int and isinstance(value, bool)):
            raise document.fail(f"{key} = {value!r} is of the wrong kind", key)
    if found.get("color", "auto") not in ("auto", "always", "never"):
        raise document.fail("color must be auto, always or never", "color")
    return _from_its_folder(found, path.parent)


def _from_its_folder(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The paths of a configuration, meant from where its file stands."""
    if "lock" in found:
        found["lock"] = str(folder / found["lock"])
    if "tree" in found:
        trees = [found["tree"]] if isinstance(found["tree"], str) else found["tree"]
        found["tree"] = [str(folder / tree) for tree in trees]
    for key in ("rules", "hardware", "model"):
        if "/" in found.get(key, "") or found.get(key, "").endswith(".toml"):
            found[key] = str(folder / found[key])
    return found


def convert(fact: str, value: object, unit: str = "") -> Scalar:
    """A value in the fact's own unit, checked against its range. Raises ValueError with the reason."""
    if fact not in QUANTITIES:
        raise ValueError(f"unknown fact {fact!r}{nearest(fact, QUANTITIES)}")
    own, *bounds = QUANTITIES[fact]
    if own == "bool":
        return _flag(value)
    if bounds and isinstance(bounds[0], tuple):
        if value not in bounds[0]:
            raise ValueError(f"{value!r} is none of {', '.join(bounds[0])}")
        return str(value)
    number, unit = _number(value, unit)
    if abs(number) > 10**30:
        raise ValueError(f"{str(value)[:40]} is out of range")
    scale = _scale(own, unit)
    result = number * scale
    if own != "GB/s" and float(result).is_integer():
        result = int(result)
    low, high = bounds
    if not low <= result <= high:
        raise ValueError(f"{result:g} {own} is out of range ({low:,} to {high:,})")
    if own not in ("GB/s", "TFLOP/s", "ns", "us") and not isinstance(result, int):
        raise ValueError(f"{result} {own} is no whole number")
    return result


def _number(value: object, unit: str) -> tuple[float | int, str]:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is no number")
    if isinstance(value, str):
        match = re.fullmatch(_QUANTITY, value)
        if match is None:
            raise ValueError(f"{value!r} is no number")
        digits = match[1].replace("_", "")
        number = float(digits) if any(c in digits for c in ".eE") else int(digits)
        return number, match[2] or unit
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{value!r} is no number")
    return value, unit


def _scale(own: str, unit: str) -> float:
    known = _UNITS.get(own, {own: 1})
    if not unit or unit == own:
        return 1
    if unit not in known:
        raise ValueError(f"unit {unit!r} is wrong: it is stated in {own}{nearest(unit, known)}")
    return known[unit]


def _flag(value: object) -> bool:
    words = {"true": True, "false": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError(f"{value!r} is neither true nor false")


def _read(path: Path) -> _Document:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    try:
        text = raw.decode()
        return _Document(path, text, tomllib.loads(text))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path.name}: not UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path.name}: broken TOML: {error}") from None


def _locate(name: str, kind: str, what: str, base: Path | None = None) -> Path:
    """A shipped name, or a path (looked up beside the pack too)."""
    if name.endswith(".toml") or "/" in name:
        for path in (Path(name), (base or Path()) / name):
            if path.is_file():
                return path
        raise UsageError(f"no {what} file at {name}")
    known = builtin(kind)
    beside = (base / kind / f"{name}.toml") if base else None
    if beside and beside.is_file():
        return beside
    if name not in known:
        raise UsageError(
            f"unknown {what} {name!r}{nearest(name, known)}",
            "`muhmod rules` lists what ships; a file of your own is given as a path, ./my.toml",
        )
    return known[name]


def _rules_folder() -> str:
    import muhmod.rules

    return str(next(iter(muhmod.rules.__path__)))


def _facts(document: _Document) -> dict[str, tuple[Candidate, ...]]:
    return {name: _claims(document, name, table) for name, table in document.data.items()}


def _claims(document: _Document, name: str, table: object) -> tuple[Candidate, ...]:
    if name not in QUANTITIES:
        raise document.fail(f"unknown fact{nearest(name, QUANTITIES)}", name)
    table = document.check(table, ("unit", "candidates", "value", "status", "source"), name)
    rows = table.get("candidates", [{k: v for k, v in table.items() if k != "unit"}])
    if not isinstance(rows, list) or not rows:
        raise document.fail("candidates must be a list of {value, status, source}", name)
    unit = str(table.get("unit", ""))
    return tuple(_candidate(document, name, unit, row) for row in rows)


def _candidate(document: _Document, name: str, unit: str, row: object) -> Candidate:
    row = document.check(row, ("value", "status", "source", "unit"), name)
    for key in ("value", "status", "source"):
        if key not in row:
            raise document.fail(f"a candidate lacks {key!r}", name)
    if row["status"] not in _STATUSES:
        word = str(row["status"])
        raise document.fail(f"status {word!r} is unknown{nearest(word, _STATUSES)}", name)
    try:
        value = convert(name, row["value"], str(row.get("unit", unit)))
    except ValueError as error:
        raise document.fail(str(error), name) from None
    return Candidate(value, row["status"], str(row["source"]))


def _settings(words: Iterable[str]) -> dict[str, tuple[Candidate, ...]]:
    found: dict[str, tuple[Candidate, ...]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise UsageError(f"--set {word}: write FACT=VALUE, e.g. --set smem_per_block=32KiB")
        try:
            found[name] = (Candidate(convert(name, value), "set", "given by --set"),)
        except ValueError as error:
            raise UsageError(f"--set {word}: {error}") from None
    return found


def _choices(
    document: _Document, claims: Mapping[str, tuple[Candidate, ...]]
) -> dict[str, tuple[Scalar, str]]:
    found: dict[str, tuple[Scalar, str]] = {}
    for name, table in document.check(document.data.get("choose", {}), QUANTITIES, "choose").items():
        table = document.check(table, ("value", "reason"), "choose", name)
        if not str(table.get("reason", "")).strip():
            raise document.fail("a choice needs a reason", "choose", name)
        try:
            value = convert(name, table.get("value"))
        except ValueError as error:
            raise document.fail(str(error), "choose", name) from None
        if name in claims and all(c.status != "set" for c in claims[name]):
            found[name] = (value, str(table["reason"]))
    return found


def _rule(document: _Document, name: str, table: object) -> Rule:
    keys = ("sites", name)
    table = document.check(table, _SITE_KEYS, *keys)
    rule = Rule(name=name, site=str(table.get("site", name)), scope=str(table.get("scope", "")))
    if not rule.scope:
        raise document.fail("scope is missing: the class and function that hold the site", *keys)
    for key, allowed in (("when_guard_false", ("hold", "refuse", "error")), ("when_absent", ("ok", "error"))):
        if table.get(key, "error") not in allowed:
            raise document.fail(f"{key} must be one of {', '.join(allowed)}", *keys, key)
    expect = table.get("expect", 1)
    if not isinstance(expect, int) or expect < 1:
        raise document.fail("expect must be a whole number from 1", *keys, "expect")
    slots = document.check(table.get("slots", {}), table.get("slots", {}), *keys, "slots")
    if not isinstance(table.get("remove", False), bool):
        raise document.fail("remove must be true or false", *keys, "remove")
    if not isinstance(table.get("require_reach", False), bool):
        raise document.fail("require_reach must be true or false", *keys, "require_reach")
    if not isinstance(table.get("guards", []), list):
        raise document.fail("guards must be a list", *keys, "guards")
    guards = tuple(_guard(document, keys, n, row) for n, row in enumerate(table.get("guards", [])))
    if not slots and not table.get("remove"):
        raise document.fail("the rule sets nothing: it needs slots, or remove = true", *keys)
    if "emit" in table:
        rule = rule._replace(keys=_ladder_keys(document, keys, table))
    rule = rule._replace(
        slots={slot: _slot(document, (*keys, "slots", slot), row) for slot, row in slots.items()},
        beside=str(table.get("beside", "")),
        remove=table.get("remove", False) is True,
        guards=guards,
        when_guard_false="hold" if table.get("when_guard_false") == "hold" else "error",
        when_absent=table.get("when_absent", "error"),
        expect=expect,
        depends_on=tuple(_words(document, table, "depends_on")),
        require_reach=table.get("require_reach", False) is True,
    )
    _check_added(document, keys, rule)
    if not rule.keys:
        return rule
    leaves = rule.slots if table["emit"] == _EITHER else {}
    return rule._replace(slots={LADDER: SlotRule("moe_ladder")}, leaves=leaves)


def _check_added(document: _Document, keys: tuple[str, ...], rule: Rule) -> None:
    """Keys that a rule adds are launch options, and what is derived for one is derived for the whole tile."""
    for name in rule.adds:
        where = (*keys, "slots", name, "when_absent")
        if rule.site != "moe-config" or name not in OPTIONS:
            raise document.fail(f"only {' and '.join(OPTIONS)} of moe-config can be added to a dict", *where)
        missing = [key for key in (*TILE_KEYS, *OPTIONS) if key not in rule.slots]
        missing += [key for key in OPTIONS if key in rule.slots and rule.slots[key].when_absent == "ok"]
        if rule.slots[name].value is None and missing:
            raise document.fail(
                f"{name} is derived together with {missing[0]}, which the rule does not set in every dict",
                *where,
                hint=f"set {missing[0]} too, or give {name} a value with its reason",
            )


_EITHER = "ladder-or-leaves"


def _ladder_keys(document: _Document, keys: tuple[str, ...], table: dict[str, Any]) -> tuple[str, ...]:
    """What the ladder of a rule sets: the slots that it names. None for `emit = "leaves"`."""
    if table["emit"] not in ("ladder", "leaves", _EITHER):
        raise document.fail(f"emit must be ladder, leaves or {_EITHER}", *keys, "emit")
    if table["emit"] == "leaves":
        return ()
    slots = table.get("slots", {})
    names = tuple(key for key in LADDER_KEYS if key in slots)
    if names not in (LADDER_KEYS, LADDER_KEYS[:1]) or len(names) < len(slots):
        raise document.fail(
            f"a ladder sets {LADDER_KEYS[0]} alone, or all of {', '.join(LADDER_KEYS)}", *keys, "slots"
        )
    for name, row in slots.items():
        if isinstance(row, dict) and "value" in row:
            raise document.fail("a ladder's values are derived: it takes no literal", *keys, "slots", name)
    return names


def _slot(document: _Document, keys: tuple[str, ...], row: object) -> SlotRule:
    row = document.check(row, _SLOT_KEYS, *keys)
    if "derive" not in row and "value" not in row:
        raise document.fail("neither a derive nor a value with its reason", *keys)
    value = row.get("value")
    if "value" in row:
        if not isinstance(value, (bool, int, float, str)):
            raise document.fail("value must be a number, a word or a flag", *keys)
        if not str(row.get("reason", "")).strip():
            raise document.fail("a literal value needs a reason", *keys)
    derive = str(row.get("derive", "literal"))
    natural = natural_derivation(keys[-1])
    if derive == "literal" and natural:
        # A limit holds whoever sets the value.
        derive = natural
    absent = row.get("when_absent", "error")
    if absent not in ("ok", "error", "add"):
        raise document.fail("when_absent must be one of ok, error, add", *keys, "when_absent")
    return SlotRule(derive, value, str(row.get("reason", "")), absent)


def _guard(document: _Document, keys: tuple[str, ...], number: int, row: object) -> GuardRule:
    where = (*keys, "guards")
    line = _guard_line(document.text, where, number)
    every = {"guard", "not", *(key for about, more in _GUARDS.values() for key in (about, *more))}
    table = document.check(row, every, *where, line=line)
    word = table.get("guard", "")
    if "guard" not in table:
        raise document.fail(f"the guard lacks its kind, guard = …{nearest('', _GUARDS)}", *where, line=line)
    if not isinstance(word, str) or word not in _GUARDS:
        raise document.fail(
            f"unknown guard {word!r}{nearest(str(word), _GUARDS)}", *where, "guard", line=line
        )
    about, needed = _GUARDS[word]
    document.check(table, {"guard", "not", about, *needed}, *where, line=line)
    for key in (about, *needed):
        if key not in table:
            raise document.fail(f"the guard lacks its {key}", *where, key, line=line)
    try:
        guard = _guard_of(word, table, str(table[about]) if isinstance(table[about], str) else "")
    except _KeyError as error:
        raise document.fail(error.args[1], *where, error.args[0], line=line) from None
    if word == "stub":
        return guard._replace(guard="implemented", negated=not guard.negated)
    return guard


class _KeyError(Exception):
    """(key, what is wrong with it)."""


def _guard_of(word: str, table: dict[str, Any], about: str) -> GuardRule:
    """A guard with its values checked. Raises _KeyError."""
    key = _GUARDS[word][0]
    if not about.strip():
        raise _KeyError(key, f"{key} must be a word that is not empty")
    negated = table.get("not", False)
    if not isinstance(negated, bool):
        raise _KeyError("not", "not must be true or false")
    if key in ("symbol", "package") and not all(part.isidentifier() for part in about.split(".")):
        raise _KeyError(key, f"{about!r} is no dotted name")
    if word == "importable" and negated:
        raise _KeyError("not", "it can never hold: what no pack declares may still be there")
    if word == "file":
        _check_path(about)
    if word == "formula":
        from muhmod import formula

        try:
            formula.parse(about)
        except ValueError as error:
            raise _KeyError(key, str(error)) from None
    value = table.get("value")
    if word == "equals" and (
        not isinstance(value, (bool, int, float, str)) or value in _NO_NUMBERS or value != value
    ):
        raise _KeyError("value", "value must be a number, a word or a flag")
    states = _states(table["states"]) if word == "state" else ()
    return GuardRule(word, about, value, states, negated)


_NO_NUMBERS = (float("inf"), float("-inf"))


def _check_path(path: str) -> None:
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "" in parts or "." in parts:
        raise _KeyError("file", f"{path!r} is no plain path inside the tree")
    if any(char in path for char in "*?[]\\") or not path.isprintable():
        raise _KeyError("file", f"{path!r}: write one file's path, with / and without wildcards")


_STATES = tuple(state for state in get_args(State) if state != "pending")


def _states(given: object) -> tuple[str, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(word, str) for word in given):
        raise _KeyError("states", "states must be a list of words that is not empty")
    for word in given:
        if word == "pending":
            raise _KeyError(
                "states", "pending is not told from applied: a plan's states are the written ones"
            )
        if word not in _STATES:
            raise _KeyError("states", f"unknown state {word!r}{nearest(word, _STATES)}")
    if ("applied" in given) != ("already" in given):
        raise _KeyError(
            "states",
            "applied is already on the next run: name both, or neither, so that no run undoes another",
        )
    return tuple(dict.fromkeys(given))


_GUARD_KEY = re.compile(r"(?:^|[{,\s])\"?guard\"?\s*=")


def _guard_line(text: str, keys: tuple[str, ...], number: int) -> int:
    """The line of a rule's guard by its number, as far as the text tells; 0 where it does not."""
    first = _line_of(text, keys)
    found = [
        line
        for line, words in enumerate(text.splitlines(), 1)
        for _ in _GUARD_KEY.findall(words.partition("#")[0])
        if line >= first
    ]
    return found[number] if first and number < len(found) else first


def _line_in_row(text: str, first: int, key: str) -> int:
    """The line of a key in a row of its own lines; the first where it is not told."""
    for line, words in enumerate(text.splitlines()[first - 1 :], first):
        if line > first and (_GUARD_KEY.search(words) or words.lstrip().startswith("[")):
            break
        if re.match(rf"\s*\"?{re.escape(key)}\"?\s*=", words):
            return line
    return first


def _text(document: _Document, data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise document.fail(f"{key} is missing", key)
    return value


def _words(document: _Document, data: dict[str, Any], key: str) -> list[str]:
    value = data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise document.fail(f"{key} must be a list of words", key)
    return value


def _line_of(text: str, keys: tuple[str, ...]) -> int:
    """The line of a dotted key: the deepest of its parts that the text spells out."""
    best, table, depth = 0, "", 0
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"\s*\[\[?\s*([^\]]+?)\s*\]", line)
        key = re.match(r"\s*\"?([\w\-]+)\"?\s*=", line)
        if head:
            table = head[1].replace('"', "")
        path = table if head else ".".join(filter(None, (table, key[1] if key else "")))
        parts = path.split(".") if head or key else []
        if parts and tuple(parts) == keys[: len(parts)] and len(parts) > depth:
            best, depth = number, len(parts)
    return best

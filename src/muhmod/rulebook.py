"""Rule packs, hardware and model facts: the only module that reads TOML.

Every key is checked, every number converted to its fact's unit and held against a sane range; an
error names the file, the line and the key.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from muhmod.derive.work import Facts
from muhmod.errors import UsageError, nearest
from muhmod.model import LADDER, LADDER_KEYS, Candidate, Scalar, Status

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
              "when_absent", "expect", "depends_on", "emit"}  # fmt: skip
_SLOT_KEYS = {"derive", "value", "reason", "when_absent"}
_GUARDS = ("implemented", "exists")


class SlotRule(NamedTuple):
    """What sets a slot: a derivation by name, or a literal of the pack's with its reason.

    `when_absent`: whether a site without the slot is an `error`, or `ok`.
    """

    derive: str
    value: Scalar | None = None
    reason: str = ""
    when_absent: str = "error"


class GuardRule(NamedTuple):
    """A condition on the tree, of the closed set that `guards` knows."""

    guard: str
    symbol: str


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


class _Document(NamedTuple):
    """A TOML file with the means to point into it."""

    path: Path
    text: str
    data: dict[str, Any]

    def fail(self, message: str, *keys: str, hint: str = "") -> UsageError:
        """An error at the line of the dotted key, as far as the text tells."""
        line = _line_of(self.text, keys)
        where = f"{self.path.name}:{line}" if line else self.path.name
        key = f" [{'.'.join(keys)}]" if keys else ""
        return UsageError(f"{where}:{key} {message}", hint)

    def check(self, table: object, allowed: Iterable[str], *keys: str) -> dict[str, Any]:
        """The table, if it is one and holds only allowed keys."""
        if not isinstance(table, dict):
            raise self.fail("is no table", *keys)
        for key in table:
            if key not in set(allowed):
                raise self.fail(f"unknown key {key!r}{nearest(key, allowed)}", *keys, key)
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
    rules = {key: rule for one in line for key, rule in _rules(one).items()}
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
        rules=_ordered(document, rules),
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


def _ordered(document: _Document, rules: dict[str, Rule]) -> tuple[Rule, ...]:
    """The rules, once each waits only for others that are there and do not wait for it."""
    for name, rule in rules.items():
        seen: list[str] = []
        after = [*rule.depends_on]
        while after:
            other = after.pop()
            if other not in rules:
                raise document.fail(
                    f"depends on an unknown rule {other!r}{nearest(other, rules)}",
                    "sites",
                    name,
                    "depends_on",
                )
            if other == name:
                raise document.fail("depends on itself, in the end", "sites", name, "depends_on")
            if other not in seen:
                seen.append(other)
                after += rules[other].depends_on
    return tuple(rules.values())


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
    for key, allowed in (("when_guard_false", ("hold", "error")), ("when_absent", ("ok", "error"))):
        if table.get(key, "error") not in allowed:
            raise document.fail(f"{key} must be one of {', '.join(allowed)}", *keys, key)
    expect = table.get("expect", 1)
    if not isinstance(expect, int) or expect < 1:
        raise document.fail("expect must be a whole number from 1", *keys, "expect")
    slots = document.check(table.get("slots", {}), table.get("slots", {}), *keys, "slots")
    if not isinstance(table.get("remove", False), bool):
        raise document.fail("remove must be true or false", *keys, "remove")
    if not isinstance(table.get("guards", []), list):
        raise document.fail("guards must be a list", *keys, "guards")
    guards = tuple(_guard(document, keys, row) for row in table.get("guards", []))
    if not slots and not table.get("remove"):
        raise document.fail("the rule sets nothing: it needs slots, or remove = true", *keys)
    if "emit" in table:
        rule = rule._replace(keys=_ladder_keys(document, keys, table))
    rule = rule._replace(
        slots={slot: _slot(document, (*keys, "slots", slot), row) for slot, row in slots.items()},
        beside=str(table.get("beside", "")),
        remove=table.get("remove", False) is True,
        guards=guards,
        when_guard_false=table.get("when_guard_false", "error"),
        when_absent=table.get("when_absent", "error"),
        expect=expect,
        depends_on=tuple(_words(document, table, "depends_on")),
    )
    if not rule.keys:
        return rule
    leaves = rule.slots if table["emit"] == _EITHER else {}
    return rule._replace(slots={LADDER: SlotRule("moe_ladder")}, leaves=leaves)


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
    if absent not in ("ok", "error"):
        raise document.fail("when_absent must be one of ok, error", *keys, "when_absent")
    return SlotRule(derive, value, str(row.get("reason", "")), absent)


def _guard(document: _Document, keys: tuple[str, ...], row: object) -> GuardRule:
    table = document.check(row, {"guard", "symbol"}, *keys, "guards")
    word = str(table.get("guard", ""))
    if word not in _GUARDS:
        raise document.fail(f"unknown guard {word!r}{nearest(word, _GUARDS)}", *keys, "guards")
    if not table.get("symbol"):
        raise document.fail("the guard lacks its symbol", *keys, "guards")
    return GuardRule(word, str(table["symbol"]))


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

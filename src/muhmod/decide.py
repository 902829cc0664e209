"""One rule on one tree: its state, its slots with their derived values, and the edits."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from muhmod import derive, entries, guards, launch
from muhmod.derive.arms import possible, tests_against
from muhmod.derive.work import Ask, Work
from muhmod.errors import DerivationError
from muhmod.guards import UNPROVEN
from muhmod.lock import Entry
from muhmod.model import (
    LADDER,
    LADDER_KEYS,
    OPTIONS,
    Derived,
    Edit,
    Found,
    GuardResult,
    SiteReport,
    Slot,
    SlotReport,
)
from muhmod.rulebook import Pack, Rule
from muhmod.search import Reading, Search, Source, roomy
from muhmod.site import Definition, Module, dotted, read_early


def decide_rule(
    rule: Rule, search: Search, reading: Reading, pack: Pack, pin: Entry | None = None
) -> tuple[SiteReport, list[tuple[str, Edit]]]:
    """The row of one rule, and the edits where it binds once. `pin`: how it was found before."""
    base = SiteReport(rule.site, "lost", rule=rule.name, scope=rule.scope)
    if search.faults:
        fault = search.faults[0]
        reason = f"{fault.message}; {fault.hint}" if fault.hint else fault.message
        return base._replace(state="unrewritable", reason=reason, code=fault.code), []
    if not search.bound:
        from muhmod.candidates import lost

        return lost(base, rule, search, reading, pin), []
    if len(search.bound) != rule.expect:
        places = ", ".join(f"{found.file}:{found.line}" for _, found in search.bound)
        reason = f"found {len(search.bound)} times, expected {rule.expect}: {places}"
        first = search.bound[0][1]
        return base._replace(state="ambiguous", reason=reason, code=3, file=first.file, line=first.line), []
    twice = _bound_twice(rule, search)
    if twice:
        first = search.bound[0][1]
        return base._replace(state="ambiguous", reason=twice, code=3, file=first.file, line=first.line), []
    decided = []
    for source, found in search.bound:
        row, changes = decide(rule, source, found, reading, pack, pin)
        decided.append((found.file, _warned(row, source.module, found), changes))
    edits = [(file, edit) for file, _, changes in decided for edit in changes]
    row = max((row for _, row, _ in decided), key=lambda row: (row.code, row.state == "pending"))
    if len(decided) > 1:
        row = row._replace(slots=tuple(slot for _, one, _ in decided for slot in one.slots))
    return row, edits


def _bound_twice(rule: Rule, search: Search) -> str:
    """Why the place that was found may not be the one that Python uses; empty where it is.

    A second definition of the same path, or a rebinding of its name, may replace the first.
    """
    for source, found in search.bound:
        paths = [
            scope.node
            for scope in source.module.scopes()
            if scope.path == rule.scope and scope.node is not None and not _is_overload(scope.node)
        ]
        if len(paths) > max(1, len([f for _, f in search.bound if f.file == found.file])):
            lines = ", ".join(str(node.lineno) for node in paths)
            return f"{rule.scope} is defined {len(paths)} times in {found.file}: lines {lines}"
        line = source.module.rebinds(rule.scope) if paths else 0
        if line:
            return f"{rule.scope} is bound again in {found.file}:{line}"
    return ""


def _is_overload(node: Definition) -> bool:
    return any(dotted(d).endswith("overload") for d in node.decorator_list)


def decide(
    rule: Rule, source: Source, found: Found, reading: Reading, pack: Pack, pin: Entry | None = None
) -> tuple[SiteReport, list[Edit]]:
    """State, slots and edits of one bound site. `pin`: how it was found before."""
    row = SiteReport(
        rule.site, "already", found.file, found.scope, found.line, found.end_line, found.form,
        rule=rule.name, slots=tuple(_plain(slot) for slot in found.slots),
    )  # fmt: skip
    suppressed = _suppressed(rule, source.module, found)
    if suppressed is not None:
        return row._replace(state="skipped", reason=f"suppressed in the source: {suppressed}"), []
    around = guards.Around(reading.tree, reading.resolve, pack.modules, frozenset(reading.names))
    early = [guard for guard in rule.guards if not guards.is_late(guard)]
    reading.watched |= {guard.about for guard in early if guard.guard == "file"}
    results = tuple(guards.evaluate(guard, found, source.module, around) for guard in early)
    row = row._replace(guards=results)
    if found.satisfied:
        return row._replace(state="satisfied-upstream", reason=found.satisfied), []
    if found.problem:
        return row._replace(state="unrewritable", reason=found.problem, code=3), []
    failed = [result for result in results if not result.holds]
    if failed:
        return _held(row, rule, failed[0]), []
    if rule.remove:
        return _removal(row, found)
    try:
        if rule.keys:
            return _ladder(row, rule, found, reading, pack)
        return _values(row, rule, found, reading, pack, pin)
    except DerivationError as error:
        reason = f"derivation refused: {error.message}" + (f"; {error.hint}" if error.hint else "")
        return row._replace(state="unrewritable", reason=reason, code=5), []


def awaited(
    rule: Rule, row: SiteReport, edits: Edits, others: Mapping[str, SiteReport], pack: Pack
) -> tuple[SiteReport, Edits]:
    """The row with the guards that waited for its values and for other rows, and what they leave of it."""
    early = sum(not guards.is_late(guard) for guard in rule.guards)
    if early == len(rule.guards) or row.state in _UNBOUND or len(row.guards) < early:
        return row, edits
    row = row._replace(guards=tuple(guards.late(rule, row, others, pack)))
    failed = [result for result in row.guards if not result.holds]
    if not failed or row.state not in ("already", "pending"):
        return row, edits
    return _held(without_values(row), rule, failed[0]), []


Edits = list[tuple[str, Edit]]
_UNBOUND = ("lost", "ambiguous", "absent", "skipped")


def without_values(row: SiteReport) -> SiteReport:
    """The row of a site that stays as it is: nothing is derived for it."""
    slots = tuple(slot._replace(new=slot.old, derived=None) for slot in row.slots if slot.old)
    return row._replace(slots=slots)


def _warned(row: SiteReport, module: Module, found: Found) -> SiteReport:
    """The row, with a word where the function reads a name that nothing has bound by then."""
    first = next((n for n, slot in enumerate(row.slots) if slot.derived is not None), None)
    node = next((s.node for s in module.scopes() if s.path == found.scope), None)
    if first is None or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return row
    early = read_early(node, {name for name in _names_on_the_way(found) if not module.binds(name)})
    if early is None:
        return row
    name, line, bound = early
    text = f"line {line} reads {name}, which line {bound} binds: that way ends in an UnboundLocalError"
    slot = row.slots[first]
    assert slot.derived is not None
    derived = slot.derived._replace(warnings=(*slot.derived.warnings, text))
    slots = [*row.slots]
    slots[first] = slot._replace(derived=derived)
    return row._replace(slots=tuple(slots))


def _names_on_the_way(found: Found) -> set[str]:
    """The names in the tests and the arithmetic between the site's literals and their uses."""
    arrivals = [arrival for slot in found.slots for arrival in slot.arrivals]
    texts = {c.test for a in arrivals for c in a.conditions} | {t for a in arrivals for t in a.transforms}
    return {name for text in texts for name in re.findall(r"(?<![\w.])[A-Za-z]\w*", text)}


def _plain(slot: Slot, note: str = "no rule sets it") -> SlotReport:
    if slot.entry is not None and slot.name != "configs":
        shown = slot.entry.show() or slot.text
    elif slot.name == "configs":
        shown = "the list"
    elif slot.name == LADDER:
        shown = _shown_ladder(slot.text)
    else:
        shown = " ".join(slot.text.split())
    return SlotReport(
        slot.name, slot.line, shown, shown, slot.reason or note, end_line=slot.end_line, bound=slot.bound,
        column=slot.column, end_column=slot.end_column, also=slot.also,
    )  # fmt: skip


def _shown_ladder(text: str) -> str:
    from muhmod.derive.kernels import ladder

    return ladder.shown(text)


def _held(row: SiteReport, rule: Rule, guard: GuardResult) -> SiteReport:
    allowed = rule.when_guard_false == "hold"
    slots = tuple(slot._replace(note="held by the guard") for slot in row.slots)
    unproven, evidence = guard.evidence.startswith(UNPROVEN), guard.evidence.removeprefix(UNPROVEN)
    reason = f"a guard is {'not proven' if unproven else 'false'}, {guard.guard}: {evidence}"
    return row._replace(state="held", reason=reason, code=0 if allowed else 3, slots=slots)


def _suppressed(rule: Rule, module: Module, found: Found) -> str | None:
    for line, (sites, reason) in module.suppressions().items():
        if {rule.site, rule.name} & {*sites} and found.line - 1 <= line <= found.end_line and reason:
            return reason
    return None


def _key(index: int, slot: Slot) -> str:
    """A slot's name within its site: the same on every run."""
    return f"{slot.name}#{index}"


def _removal(row: SiteReport, found: Found) -> tuple[SiteReport, list[Edit]]:
    slots, edits = [], []
    for index, slot in enumerate(found.slots):
        if slot.editable:
            why = Derived("", "heuristic", ("its guards hold, so the choice is left to the heuristic",))
            slots.append(_plain(slot, "")._replace(new="", note="removed", derived=why))
            edits.append(Edit(_key(index, slot), slot.start, slot.end, "remove", "", slot.segment))
        else:
            slots.append(_plain(slot))
    return row._replace(state="pending", slots=tuple(slots)), edits


def settled(rule: Rule, search: Search, reading: Reading) -> Rule:
    """The rule as this tree lets it be: one that may set leaves does so where no ladder can stand.

    The places that the search found lose their room for a ladder then.
    """
    refused = [why for _, found in search.bound if rule.leaves and (why := _no_ladder(rule, found, reading))]
    if not refused or any(found.room and found.room.slot.text for _, found in search.bound):
        return rule
    leaves = rule._replace(keys=(), slots=rule.leaves, instead=refused[0])
    search.bound[:] = [
        (source, roomy(leaves, found.without_room(), source.module)) for source, found in search.bound
    ]
    return leaves


def _no_ladder(rule: Rule, found: Found, reading: Reading) -> str:
    """Why no generated ladder can stand in its room; empty where one can."""
    from muhmod.readers import readers

    if found.room is None:
        return "no ladder: this is no function that returns a dict"
    refused = found.room.slot.reason
    added = sorted({*rule.keys} - {*found.room.held})
    if not refused and added:
        refused = readers(reading, found.file, found.scope).refusal(added)
    return f"no ladder: {refused}" if refused else ""


def _ladder(
    row: SiteReport, rule: Rule, found: Found, reading: Reading, pack: Pack
) -> tuple[SiteReport, list[Edit]]:
    """A generated ladder in its room, where every reader of the dict takes what it adds."""
    room = found.room
    assert room is not None
    index = next(n for n, slot in enumerate(found.slots) if slot.name == LADDER)
    slot = found.slots[index]
    refused = _no_ladder(rule, found, reading)
    if refused:
        return row._replace(state="unrewritable", reason=refused, code=3), []
    derived = derive.run("moe_ladder", pack.facts, Ask(keys=rule.keys, spelling=room.spelling))
    kept = [_plain(one, "kept: what is left to it when the ladder is not taken") for one in found.slots]
    report = _plain(slot)._replace(note="holds the derived ladder", derived=derived)
    if slot.text == derived.value:
        return row._replace(slots=(*kept[:index], report, *kept[index + 1 :])), []
    new = str(derived.value)
    report = report._replace(new=_shown_ladder(new), note="")
    edit = Edit(_key(index, slot), slot.start, slot.end, "block", new, slot.segment)
    return row._replace(state="pending", slots=(*kept[:index], report, *kept[index + 1 :])), [edit]


def _values(
    row: SiteReport, rule: Rule, found: Found, reading: Reading, pack: Pack, pin: Entry | None
) -> tuple[SiteReport, list[Edit]]:
    """Each slot that the rule sets, against its derived value."""
    ladder = next((slot for slot in found.slots if slot.name == LADDER), None)
    if ladder is not None:
        reason = f"a generated ladder in line {ladder.line} decides over what this rule sets"
        return row._replace(state="unrewritable", reason=reason, code=3), []
    held = {name for slot in found.slots for name in (slot.name, *slot.also)}
    missing = [name for name, one in rule.slots.items() if name not in held and one.when_absent == "error"]
    if missing:
        shown = ", ".join(sorted({slot.name for slot in found.slots}))
        reason = f"the slot {missing[0]} is not there; slots: {shown}{launch.next_step(missing[0], found)}"
        return row._replace(state="drifted", reason=reason, code=3), []
    written = {slot.name for slot in pin.slots if slot.ours and not slot.base} if pin else set()
    closed = _no_keys(rule, found, reading, Work(pack.facts), written & {*rule.adds})
    if closed:
        return row._replace(state="unrewritable", reason=closed, code=3), []
    if "configs" in rule.slots:
        reports, lists = entries.decided(found, rule.slots["configs"].derive, pack.facts)
        return row._replace(slots=tuple(reports), state="pending" if lists else "already"), lists
    options = {*OPTIONS}
    chosen = options <= {*rule.slots} and found.room is not None and options <= {*found.room.held}
    slots: list[SlotReport] = []
    edits: list[Edit] = []
    governed: set[str] = set()
    for index, slot in enumerate(found.slots):
        if {slot.name, *slot.also} & {*rule.slots}:
            ask = Ask(slot.arrivals, launch=chosen, tile=_beside(slot, found))
            ask = launch.asked(ask, rule, slot, found) if rule.adds else ask
            report_, edit, sets = _value(index, slot, rule, found, pack, ask)
            slots.append(report_)
            edits += [edit] if edit else []
            governed |= {slot.name, *slot.also} if sets else set()
        else:
            slots.append(_plain(slot))
    row = row._replace(slots=tuple(slots))
    work = Work(pack.facts)
    left = next((n for n, slot in enumerate(found.slots) if _is_open(slot, work) and not slots[n].new), None)
    if left is not None:
        reason = f"{slots[left].name} cannot be added in line {slots[left].line}: {slots[left].note}"
        return row._replace(state="unrewritable", reason=reason, code=3), []
    unset = [name for name, one in rule.slots.items() if name not in governed and one.when_absent == "error"]
    if unset:
        about = {slot.name for slot in found.slots if unset[0] in (slot.name, *slot.also)}
        notes = sorted({slot.note for slot in slots if slot.name in about})
        reason = f"{unset[0]} cannot be set: {'; '.join(notes)}{launch.next_step(unset[0], found)}"
        return row._replace(state="unrewritable", reason=reason, code=3), []
    if rule.adds:
        launch.check(found, slots, work)
    said = f"{rule.instead}; values in place instead" if rule.instead else ""
    return row._replace(state="pending" if edits else "already", reason=said), edits


# Keys that are added -----------------------------------------------------------------------------


def _is_open(slot: Slot, work: Work) -> bool:
    """Whether the slot is a key that is missing in a dict that this hardware takes."""
    return slot.room != (0, 0) and any(possible(arrival, work) for arrival in slot.arrivals)


def _no_keys(rule: Rule, found: Found, reading: Reading, work: Work, written: set[str]) -> str:
    """Why the keys that the rule adds cannot stand in every dict that lacks one; empty where they can.

    `written`: those that it added before; a reader that came since may not take them.
    """
    from muhmod.readers import readers

    held = {name for slot in found.slots for name in (slot.name, *slot.also)}
    nowhere = [name for name in rule.adds if name not in held]
    if nowhere:
        why = found.keys.refused or "no dict of it that is used names a tile in M, N and K"
        return f"{nowhere[0]} cannot be added: {why}"
    rooms = [slot for slot in found.slots if _is_open(slot, work)]
    names = sorted({slot.name for slot in rooms} | written)
    if not names:
        return ""
    why = next((slot.reason for slot in rooms if not slot.editable), "")
    why = (found.keys.refused if rooms else "") or why
    if not why:
        keys = found.keys
        why = readers(reading, found.file, found.scope, keys.names, returned=keys.returned).refusal(names)
    return f"{', '.join(names)} cannot be added: {why}" if why else ""


def _beside(slot: Slot, found: Found) -> dict[str, int]:
    """The literals that arrive together with a slot's, by name; of several the one with the most tests."""
    ways = [{*arrival.conditions} for arrival in slot.arrivals]
    best: dict[str, tuple[int, int]] = {}
    for other in found.slots:
        value = launch.side_of(other) or other.value
        tests = [len(a.conditions) for a in other.arrivals if any({*a.conditions} <= way for way in ways)]
        if type(value) is int and other.live and tests:
            for name in (other.name, *other.also):
                best[name] = max(best.get(name, (-1, 0)), (max(tests), value))
    own = {name: slot.value for name in (slot.name, *slot.also) if type(slot.value) is int}
    return {name: value for name, (_, value) in best.items()} | own


def _kept(slot: Slot, rule: Rule, found: Found, ask: Ask) -> str:
    """Why a literal of a MoE dict that the rule could set stays as it is; empty where it does not."""
    if found.site != "moe-config" or ask.launch:
        return ""
    follows = (
        "the tile beside it follows the quantisation's blocks: left" if launch.follows(slot, found) else ""
    )
    if slot.room != (0, 0) and follows:
        return follows
    if slot.name == "num_warps":
        return (rule.adds and follows) or "not every dict names warps and stages: left"
    if slot.name == "num_stages":
        return "" if {*LADDER_KEYS[:3]} <= {*ask.tile} else "the tile beside it is decided elsewhere: left"
    return follows


def _value(
    index: int, slot: Slot, rule: Rule, found: Found, pack: Pack, ask: Ask
) -> tuple[SlotReport, Edit | None, bool]:
    """The report and edit of a leaf; the flag says whether the rule sets it."""
    plain = _plain(slot)
    if not slot.live:
        return plain._replace(note="overwritten on every path: never read"), None, False
    work = Work(pack.facts)
    if not any(possible(arrival, work) for arrival in slot.arrivals):
        against = [tests_against(arrival, work) for arrival in slot.arrivals]
        tests = [t for t in against[0] if all(t in other for other in against)] or against[0]
        note = f"an arm that this hardware does not take: {'; '.join(tests)}"
        return plain._replace(note=note), None, False
    if not slot.editable:
        return plain._replace(note=slot.reason), None, False
    names = (slot.name, *slot.also)
    others = [name for name in names if name not in rule.slots]
    if others:
        return plain._replace(note=f"the same literal also sets {', '.join(others)}"), None, False
    setting = rule.slots[slot.name]
    unlike = [name for name in names if rule.slots[name] != setting]
    if unlike:
        note = f"the same literal also sets {unlike[0]}, which the rule sets otherwise"
        return plain._replace(note=note), None, False
    kept = _kept(slot, rule, found, ask) if setting.value is None else ""
    if kept:
        return plain._replace(note=kept), None, False
    ask = ask._replace(literal=setting.value, reason=setting.reason)
    derived = derive.run(setting.derive, pack.facts, ask)
    if derived.value == slot.value and type(derived.value) is type(slot.value):
        return plain._replace(note="holds the derived value", derived=derived), None, True
    new = derive.literal_of(derived.value)
    report = plain._replace(new=new, note="", derived=derived)
    if slot.room != (0, 0):
        edit = Edit(_key(index, slot), slot.start, slot.end, "key", new, slot.segment, slot.room)
        return report._replace(note="added"), edit, True
    return report, Edit(_key(index, slot), slot.start, slot.end, "replace", new, slot.segment), True

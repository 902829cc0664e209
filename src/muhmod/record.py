"""What a plan leaves in muhmod.lock: each site as it was found and as it was written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from muhmod import catalog, drift, lock, pins, report, tree
from muhmod.engine import Change, Options, Plan, Purpose, plan
from muhmod.errors import MuhmodError, RefusedError, UsageError
from muhmod.fingerprint import Place, governed
from muhmod.lock import Entry, Pinned
from muhmod.model import LADDER, OPTIONS, SiteReport, Slot
from muhmod.rulebook import Pack
from muhmod.site import Module
from muhmod.tree import Tree


def locked(made: Plan, name: str, path: Path) -> lock.Lock:
    """The lock after the plan of a tree of that name, to stand at `path`. Earlier entries are carried along.

    Drifted and lost sites keep their old entries: only `accept` takes a new place. Raises RefusedError.
    """
    rows = {row.rule: row for row in made.sites}
    rules = {rule.name: rule for rule in made.pack.rules}
    changes = {change.file: change for change in made.changes}
    known = made.known
    carried, chained = _carried(made, known, changes)
    entries: dict[tuple[str, str, str], Entry] = {}
    for entry in carried:
        if rows.get(entry.rule, _NONE).state in _STAYING or entry.rule not in rules:
            entries[entry.rule, entry.file, entry.scope] = entry
    for rule, row in rows.items():
        if row.state in _STAYING:
            continue
        own = [entry for entry in carried if entry.rule == rule]
        digest = pins.rule_digest(rules[rule])
        for entry in _entries(made, row, digest, own, changes, chained):
            entries[entry.rule, entry.file, entry.scope] = entry
    digest = pins.digest_of(made.pack.text.encode())[:16]
    pack = _portable(made.pack.files[0], path.parent)
    return lock.Lock(
        name, pack, digest, tuple(entries.values()), tree.version(made.tree),
        _stamp(made, changes, path.parent), tuple(report.advised(made.advice, full=False)),
        bool(known and known.pinned),
    )  # fmt: skip


_NONE = SiteReport("", "skipped")
_STAYING = ("drifted", "lost", "ambiguous", "unrewritable")


def _portable(named: tuple[str, Path], home: Path) -> str:
    """What the lock calls an input: a shipped one by its name, another by its place from the lock."""
    name, path = named
    if not name.startswith("muhmod."):
        return _from(path.absolute(), home)
    return path.stem if name.count("/") == 1 else name


def _from(path: Path, home: Path) -> str:
    """A path from the lock's folder, never to be taken for a shipped name."""
    return f"./{Path(os.path.relpath(path, home)).as_posix()}"


def _stamp(made: Plan, changes: dict[str, Change], home: Path) -> lock.Stamp:
    """The plan's stamp, with the files as written. Empty where another look may say more, or other things."""
    if made.pack.overridden or made.code or made.notes or any(_is_chosen(row) for row in made.sites):
        return lock.Stamp()
    seen = {
        file: pins.digest_of(changes[file].after) if file in changes else digest
        for file, digest in made.stamp.seen
    }
    inputs = tuple(
        (name if name.startswith("muhmod.") else _from(Path(name), home), digest)
        for name, digest in made.stamp.inputs
    )
    return made.stamp._replace(seen=tuple(sorted(seen.items())), inputs=inputs)


def _entries(
    made: Plan,
    row: SiteReport,
    digest: str,
    own: list[Entry],
    changes: dict[str, Change],
    chained: set[tuple[str, int]],
) -> Iterable[Entry]:
    """The entries of one decided rule."""
    if row.state == "skipped" and row.reason == "not selected":
        yield from own
        return
    places = [place for place in made.places if place.rule == row.rule]
    base = Entry(
        row.rule, row.site, "", row.scope, 0, "", row.state, row.reason, digest, "", "",
        facts=pins.facts_of(row), conditions=_conditions(row),
    )  # fmt: skip
    if not places:
        yield base
    for place in places:
        same = [e for e in own if len(own) == 1 or (e.file, e.scope) == (place.file, place.scope)]
        yield _entry(base, place, next(iter(same), None), changes.get(place.file), chained)


def _conditions(row: SiteReport) -> tuple[tuple[str, bool], ...]:
    return tuple((guard.guard, guard.holds) for guard in row.guards)


def _entry(
    base: Entry, place: Place, prior: Entry | None, change: Change | None, chained: set[tuple[str, int]]
) -> Entry:
    after = (
        next((p for p in change.places if p.rule == place.rule and p.scope == place.scope), None)
        if change
        else place
    )
    texts = [text for _, text in after.print.slots] if after else []
    earlier = drift.standing_texts(prior, place) if prior else None
    slots = []
    for number, (name, now) in enumerate(place.print.slots):
        before = prior.slots[number] if prior and earlier is not None else None
        kept = before is not None and before.base != before.ours == now
        held = prior.slots[number].kept if prior and earlier is not None else False
        slots.append(Pinned(name, before.base if kept and before else now,
                            texts[number] if number < len(texts) else "", held))  # fmt: skip
    if prior and earlier is not None and not place.print.slots:
        slots = list(prior.slots)
    fresh = [
        splice for number, (rule, splice) in enumerate(change.splices)
        if rule == place.rule and (change.file, number) not in chained
    ] if change else []  # fmt: skip
    splices = tuple(sorted((*(prior.splices if prior else ()), *fresh), key=lambda s: s.at))
    digest = pins.digest_of(change.after) if change else place.digest
    if prior and prior.written and not change:
        digest = prior.after
    guards = prior.guards if prior and not place.print.guards else place.print.guards
    return base._replace(
        state="already" if fresh else base.state,
        file=place.file,
        scope=place.scope,
        line=after.line if after else place.line,
        form=place.form,
        before=prior.before if prior and prior.splices else place.digest,
        after=digest,
        slots=tuple(slots),
        guards=guards,
        body=place.print.words,
        splices=splices,
        accepted=prior.accepted if prior else "",
    )


# Earlier entries, moved along -------------------------------------------------------------------


def _carried(
    made: Plan, known: lock.Lock | None, changes: dict[str, Change]
) -> tuple[list[Entry], set[tuple[str, int]]]:
    """The lock's entries with their splices where they will be, and the splices that went into them."""
    states = {row.rule: row.state for row in made.sites}
    out: list[Entry] = []
    chained: set[tuple[str, int]] = set()
    for entry in known.entries if known else ():
        own_places = [p for p in made.places if p.rule == entry.rule]
        here = [
            p for p in own_places if len(own_places) == 1 or (p.file, p.scope) == (entry.file, entry.scope)
        ]
        file = here[0].file if here else entry.file
        change = changes.get(file)
        if here:
            entry = _settled(entry, here[0], upstreams=states.get(entry.rule) == "satisfied-upstream")
        # The file of a lost site may be gone.
        if entry.written and (change or (made.tree.package / file).is_file()):
            data = change.before if change else tree.read(made.tree, file)
            entry = _current(entry._replace(file=file), data)
        if change is None:
            out.append(entry)
            continue
        if entry.written and entry.after != pins.digest_of(change.before):
            raise RefusedError(
                f"{entry.rule} was edited since it was written: {file}",
                f"undo that edit, or remove the {entry.rule} line of {lock.NAME} to go on without a way back",
            )
        own: set[int] = set()
        splices = tuple(_moved(splice, entry, change, own) for splice in entry.splices)
        chained |= {(file, number) for number in own}
        out.append(entry._replace(after=pins.digest_of(change.after), splices=splices))
    return out, chained


def _is_chosen(row: SiteReport) -> bool:
    """Whether the command line or an answer left something of the site out."""
    declined = [row.reason, *(slot.note for slot in row.slots)]
    return "not selected" in declined or "declined by the user" in declined


def _settled(entry: Entry, place: Place, *, upstreams: bool) -> Entry:
    """The entry without what is as upstream has it: again, or (`upstreams`) by itself."""
    texts = drift.standing_texts(entry, place)
    if texts is None or not entry.written:
        return entry
    written = iter(entry.splices)
    slots, splices = [], []
    for slot, text in zip(entry.slots, texts, strict=True):
        splice = next(written, None) if slot.base != slot.ours else None
        if splice is not None and (upstreams or text != slot.ours):
            slot = slot._replace(base=text, ours=text)
        elif splice is not None:
            splices.append(splice)
        slots.append(slot)
    return entry._replace(slots=tuple(slots), splices=tuple(splices))


def _current(entry: Entry, data: bytes) -> Entry:
    """An earlier entry on the file as it is now; as it was, where its places are not found again."""
    now = pins.digest_of(data)
    if entry.after == now:
        return entry
    try:
        places = anchors(Module(tree.decode(data, entry.file).text), entry)
    except MuhmodError:
        return entry
    splices = tuple(s._replace(at=at) for s, at in zip(entry.splices, places, strict=True))
    return entry._replace(splices=splices, after=now)


def _moved(splice: lock.Splice, entry: Entry, change: Change, chained: set[int]) -> lock.Splice:
    """An earlier splice in the new text: moved by what changed before it, or chained where it changed."""
    passed = shift = 0
    for number, (_, new) in enumerate(change.splices):
        start = new.at - passed
        passed += len(new.new) - len(new.old)
        if start == splice.at and new.old == splice.new:
            chained.add(number)
            return new._replace(old=splice.old)
        inside = _inside(splice, new, start)
        if inside is not None:
            chained.add(number)
            return inside
        if start < splice.at + len(splice.new) and splice.at < start + len(new.old):
            raise RefusedError(
                f"{entry.rule} of {entry.file} would be written in part over an earlier change",
                "run `muhmod revert` first",
            )
        if start < splice.at:
            shift = passed
    return splice._replace(at=splice.at + shift)


def _inside(splice: lock.Splice, new: lock.Splice, start: int) -> lock.Splice | None:
    """An added key's splice with another value in it; None where the new one is not just that."""
    at = start - splice.at
    before, after = splice.new[: max(at, 0)], splice.new[at + len(new.old) :]
    if splice.slot.partition("#")[0] not in OPTIONS or at <= 0 or before + new.old + after != splice.new:
        return None
    head, tail = new.head.removesuffix(before), new.tail.removeprefix(after)
    return splice._replace(at=new.at - at, new=before + new.new + after, head=head, tail=tail)


def anchors(module: Module, entry: Entry) -> list[int]:
    """Where the entry's splices stand in a file that changed elsewhere, as char offsets.

    By what stood around them, or else by the site's structure. Raises RefusedError.
    """
    found = [_by_context(module, splice) for splice in entry.splices]
    if None in found:
        found = [*_by_structure(module, entry)]
    places = [at for at in found if at is not None]
    if len(places) < len(entry.splices):
        raise RefusedError(
            f"{entry.rule} was edited since it was written: {entry.file}",
            "take the file back from version control, or undo that edit",
        )
    return places


def _by_context(module: Module, splice: lock.Splice) -> int | None:
    wanted = splice.head + splice.new + splice.tail
    first = module.text.find(wanted)
    if first < 0 or module.text.find(wanted, first + 1) >= 0:
        return None
    return first + len(splice.head)


def _by_structure(module: Module, entry: Entry) -> list[int | None]:
    """The slots of the pinned names and order, where each splice's own still holds what was written."""
    site = catalog.site(entry.site)
    places = [found for found in site.find(module) if found.scope == entry.scope]
    names = [slot.name for slot in entry.slots]
    added = {slot.name for slot in entry.slots if slot.name in OPTIONS and not slot.base}
    if added:
        places = [found.with_keys(added, site.keys(module, found)) for found in places]
    elif LADDER in names:
        places = [found.with_room() for found in places]
    if len(places) != 1 or [slot.name for slot in governed(places[0], names)] != names:
        return []
    slots = {f"{slot.name}#{number}": slot for number, slot in enumerate(places[0].slots)}
    own = [slots.get(splice.slot) for splice in entry.splices]
    return [
        _at(module.text, slot, splice) if slot is not None and slot.text else None
        for slot, splice in zip(own, entry.splices, strict=True)
    ]


def _at(text: str, slot: Slot, splice: lock.Splice) -> int | None:
    """Where a slot's splice stands, if all of it does."""
    start, end = lock.around(splice, slot.text, slot.start, slot.end)
    return start if text[start:end] == splice.new else None


# What a person takes ---------------------------------------------------------------------------


def chosen(of: Tree, pack: Pack, known: lock.Lock) -> lock.Lock:
    """A salvaged lock with one entry a site: of several, the one that the tree bears out."""
    now = plan(of, pack, Options(), None, Purpose(rewrite=False)).places
    keep: list[Entry] = []
    for name in dict.fromkeys(entry.rule for entry in known.entries):
        entries = known.of_rule(name)
        places = [place for place in now if place.rule == name]
        if len(entries) > max(1, len(places)):
            entries = tuple(sorted(entries, key=lambda entry: _doubts(entry, places)))[: max(1, len(places))]
        keep += entries
    return known._replace(entries=tuple(keep))


def _doubts(entry: Entry, places: list[Place]) -> tuple[int, bool, str]:
    """How badly an entry fits the tree; a tie goes to the one that can be taken back."""
    counts = [
        sum(one.kind != "moved" for one in drift.differences(entry, place)[0])
        + (entry.written and not drift.stands(entry, place))
        for place in places
    ]
    return min(counts, default=0), not entry.written, entry.after


def accepted(
    of: Tree, pack: Pack, known: lock.Lock, name: str, reason: str, place: str, *, keep: bool | None
) -> lock.Lock:
    """The lock with a site's present place or value taken into it, for a reason. Raises MuhmodError.

    `keep`: the value that stands there stays; None: where somebody edited what was written.
    """
    if place:
        pack, reason = _bound_to(pack, name, place, reason)
        others = known._replace(entries=tuple(e for e in known.entries if e.rule != name))
        made = plan(of, pack, Options(), others, Purpose(rewrite=False))
    else:
        made = plan(of, pack, Options(), known, Purpose(rewrite=False))
    row = next(row for row in made.sites if row.rule == name)
    if row.state in ("lost", "ambiguous") or row.code == 4:
        raise RefusedError(
            f"{name} is {row.state}: {row.reason}",
            f"`muhmod accept {name} --as FILE:SCOPE --reason WHY` names the place",
        )
    if row.state != "drifted" and known.of_rule(name) and not place and not keep:
        raise UsageError(f"{name} is {row.state}: there is nothing to accept")
    keep = row.cause == "somebody edited" if keep is None else keep
    places = [one for one in made.places if one.rule == name]
    old = known.of_rule(name)
    entries = [
        _retaken(old[min(number, len(old) - 1)] if old else None, one, row, reason, keep=keep)
        for number, one in enumerate(places)
    ]
    return known._replace(entries=(*(e for e in known.entries if e.rule != name), *entries))


def _bound_to(pack: Pack, name: str, place: str, reason: str) -> tuple[Pack, str]:
    file, colon, scope = place.rpartition(":")
    rules = tuple(rule._replace(scope=scope, file=file) if rule.name == name else rule for rule in pack.rules)
    return pack._replace(rules=rules), f"{pins.ONE_FILE}{reason}" if colon else reason


def _retaken(old: Entry | None, place: Place, row: SiteReport, reason: str, *, keep: bool) -> Entry:
    """An entry for the place as it stands; what muhmod wrote and still stands can still be taken back."""
    texts = drift.standing_texts(old, place) if old else None
    slots, splices = [], []
    written = iter(old.splices if old else ())
    for number, (name, text) in enumerate(place.print.slots):
        before = old.slots[number] if old and texts is not None else Pinned(name, text, text)
        splice = next(written, None) if before.base != before.ours else None
        if text in (before.base, before.ours):
            slots.append(before)
            splices += [splice] if splice and text == before.ours else []
        else:
            slots.append(Pinned(name, text, text, keep))
    fresh = Entry(row.rule, row.site, "", "", 0, "", row.state, "", "", place.digest, place.digest)
    entry = old if old and splices else fresh
    return entry._replace(
        file=place.file, scope=place.scope, line=place.line, form=place.form, slots=tuple(slots),
        guards=place.print.guards, body=place.print.words, splices=tuple(splices),
        accepted=reason, conditions=_conditions(row),
    )  # fmt: skip

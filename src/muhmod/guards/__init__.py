"""Guards: a closed set of conditions, each with the place or the numbers that show it.

A guard that cannot be evaluated does not hold, whichever way it asks, and says so. `evaluate` is for
those on the tree; `late` for those on other rules' states and on derived values.
"""

from __future__ import annotations

from collections.abc import Mapping

from muhmod.errors import MuhmodError
from muhmod.guards import functions, names, presence, values
from muhmod.guards.around import UNPROVEN, Around, Verdict, unproven
from muhmod.model import Found, GuardResult, SiteReport
from muhmod.rulebook import GuardRule, Pack, Rule
from muhmod.site import Module

__all__ = ("UNPROVEN", "Around", "evaluate", "is_late", "late")


def evaluate(rule: GuardRule, found: Found, module: Module, around: Around) -> GuardResult:
    """Whether a guard on the tree holds for a site that was found in `module`."""
    try:
        verdict = _verdict(rule, found, module, around._replace(wanted=not rule.negated))
    except MuhmodError as error:
        verdict = unproven(error.message)
    except RecursionError:
        verdict = unproven(f"{found.file} is nested too deeply to be followed")
    return _result(rule, verdict)


def is_late(rule: GuardRule) -> bool:
    """Whether the guard waits for derived values, or for what became of another site."""
    return rule.guard in ("formula", "state")


def late(rule: Rule, row: SiteReport, others: Mapping[str, SiteReport], pack: Pack) -> list[GuardResult]:
    """All guards of the rule, those that waited evaluated now. `row`: the decided site, with the rest."""
    waited = {shown(guard) for guard in rule.guards if is_late(guard)}
    early = iter([result for result in row.guards if result.guard not in waited])
    out = []
    for guard in rule.guards:
        if guard.guard == "state":
            out.append(_result(guard, values.state(guard, others)))
        elif guard.guard == "formula":
            out.append(_result(guard, values.formula(guard, rule, row, others, pack)))
        else:
            out.append(next(early))
    return out


def shown(rule: GuardRule) -> str:
    """The guard in words."""
    about, no = rule.about, "not " if rule.negated else ""
    match rule.guard:
        case "implemented":
            return f"{about} is {'a stub' if rule.negated else 'implemented'}"
        case "exists":
            return f"{about} {'is missing' if rule.negated else 'exists'}"
        case "equals":
            return f"{about} is {no}{rule.value!r}"
        case "file":
            return f"the file {about} is {no}there"
        case "importable":
            return f"{about} is importable"
        case "state":
            return f"{about} is {no}{' or '.join(rule.states)}"
    return f"not ({about})" if rule.negated else about


def _verdict(rule: GuardRule, found: Found, module: Module, around: Around) -> Verdict:
    match rule.guard:
        case "implemented":
            return functions.implemented(rule.about, found, module, around)
        case "exists":
            return names.exists(rule.about, found, module, around)
        case "equals" if rule.value is not None:
            return names.equals(rule.about, rule.value, found, module, around)
        case "file":
            return presence.file(rule.about, around)
        case "importable":
            return presence.importable(rule.about, around)
    return unproven(f"there is no guard {rule.guard}")


def _result(rule: GuardRule, verdict: Verdict) -> GuardResult:
    holds = verdict.proven and verdict.holds is not rule.negated
    return GuardResult(shown(rule), holds, verdict.evidence, verdict.facts)

"""A hang in words: one sentence that names rank, place and who waits, and the facts that prove it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from torchyard.diagnosis.hang.calls import Cut, Side, describe_call
from torchyard.diagnosis.hang.missing_ranks import Fault
from torchyard.diagnosis.hang.pending_collectives import (
    CALL,
    DEFAULT_GROUP,
    SETUP,
    PendingCollective,
    clean_operation,
    count_called,
)
from torchyard.diagnosis.hang.stack_locations import (
    agree,
    cluster_ranks,
    describe_place,
    find_user_frame,
    name_nodes,
    name_ranks,
)
from torchyard.model.hang import Collective, Hang, HangClass, RankRecord

_Records = Mapping[int, RankRecord]
_MAX_EVIDENCE = 12
_PLURALS = {"has": "have", "says": "say", "is": "are"}
_PLURAL = re.compile(r"^(?:has|says|is)\b")
_ADDED = {
    "gil": ", in a call that holds Python's global lock",
    "storage": ", where it reads or writes files",
    "network": ", where it waits for another machine",
}


def tell_absence(
    each: PendingCollective, faults: Mapping[int, Fault], records: _Records, waiting: frozenset[int]
) -> Hang:
    """Ranks that others wait for."""
    ranks, fault = tuple(faults), next(iter(faults.values()))
    seen = [rank for rank in ranks if rank in records]
    places = Counter(describe_place(records[rank]) for rank in seen if records[rank].stack)
    place = places.most_common(1)[0][0] if places else ""
    them = agree(ranks, "it", "them")
    sentence = (
        f"{name_ranks(ranks)}{name_nodes(records[rank].node for rank in seen)} {_say(fault, ranks, place)}: "
        f"{name_ranks(each.waiting)} {agree(each.waiting, 'waits', 'wait')} for {them} in {_name(each, records)}"
    )
    more = waiting - each.waiting
    sentence += f", and {name_ranks(more)} for those" if more else ""
    where = next((rank for rank in seen if describe_place(records[rank]) == place), None)
    hang = _begin(fault.kind, ranks, records, waiting | each.waiting)
    return hang.model_copy(
        update={
            "sentence": sentence,
            "location": _find_where(records, [where] if where is not None else []),
            "collective": _find_collective(each, records),
            "evidence": (*_tell_counts(each, ranks, records), *_tell_facts(ranks, records))[:_MAX_EVIDENCE],
        }
    )


def tell_cycle(ring: tuple[PendingCollective, ...], records: _Records, waiting: frozenset[int]) -> Hang:
    """Ranks that wait for each other."""
    ranks = tuple(sorted({rank for each in ring for rank in each.waiting}))
    parts = [
        f"{name_ranks(each.waiting)} {agree(each.waiting, 'waits', 'wait')} in {_name(each, records)}" for each in ring
    ]
    sentence = f"{name_ranks(ranks)}{_name_nodes(ranks, records)} wait for each other: {', '.join(parts)}"
    evidence = [line for each in ring for line in _tell_counts(each, sorted(each.missing & set(ranks)), records)]
    hang = _begin("deadlock-between-groups", ranks, records, waiting)
    return hang.model_copy(
        update={
            "sentence": sentence,
            "location": _find_where(records, ranks),
            "collective": _find_collective(ring[0], records),
            "evidence": tuple(evidence[:_MAX_EVIDENCE]),
        }
    )


def tell_mismatch(each: PendingCollective, sides: tuple[Side, ...], records: _Records, waiting: frozenset[int]) -> Hang:
    """Ranks that call different things under one number; the fewest are to blame, or all if there are as many."""
    ranks = sides[0].ranks
    if len(sides[0].ranks) == len(sides[1].ranks):
        ranks = tuple(sorted(rank for side in sides for rank in side.ranks))
    parts = [
        f"{name_ranks(side.ranks)} {agree(side.ranks, 'calls', 'call')} {side.call}{_at_line(records, side.ranks[0])}"
        for side in reversed(sides)
    ]
    sentence = (
        f"number {each.sequence:,} of {_name_group(each)} is not the same call in all ranks: {', '.join(parts[:4])}"
    )
    hang = _begin("collective-mismatch", ranks, records, (waiting | each.waiting) - set(ranks))
    evidence = tuple(f"{part}, its number {each.sequence:,}" for part in parts[:_MAX_EVIDENCE])
    of_others = _find_collective(each, records, sides[-1].ranks)
    where = _find_where(records, ranks)
    return hang.model_copy(
        update={"sentence": sentence, "location": where, "collective": of_others, "evidence": evidence}
    )


def tell_skipped(each: PendingCollective, done: frozenset[int], records: _Records, waiting: frozenset[int]) -> Hang:
    """Ranks whose call of this number is complete, while others wait in theirs: it was another call."""
    fewer = min(done, each.waiting, key=len)
    ranks = tuple(sorted(fewer if len(done) != len(each.waiting) else done | each.waiting))
    sentence = (
        f"{name_ranks(done)}{_name_nodes(done, records)} {agree(done, 'has', 'have')} completed "
        f"number {each.sequence:,} of {_name_group(each)}, and {name_ranks(each.waiting)} still "
        f"{agree(each.waiting, 'waits', 'wait')} in {_name(each, records)}: they have called different collectives"
    )
    hang = _begin("collective-mismatch", ranks, records, (waiting | each.waiting) - set(ranks))
    update = {
        "sentence": sentence,
        "location": _find_where(records, ranks),
        "collective": _find_collective(each, records),
    }
    return hang.model_copy(update={**update, "evidence": _tell_counts(each, sorted(done), records)})


def tell_cut(each: PendingCollective, cut: Cut, records: _Records, waiting: frozenset[int]) -> Hang:
    """All ranks are in the same call, and connections between them retransmit."""
    ranks = tuple(
        sorted(rank for rank in each.members & records.keys() if cut.is_shared and records[rank].node in cut.nodes)
    )
    at = f"all of them at {cut.nodes[0]}" if cut.is_shared else f"as {', '.join(cut.nodes)} reports"
    sentence = (
        f"the network does not deliver: {name_ranks(each.waiting)} are in {_name(each, records)}, "
        f"and connections retransmit, {at}"
    )
    hang = _begin("network", ranks, records, (waiting | each.waiting) - set(ranks))
    update = {"sentence": sentence, "nodes": cut.nodes, "collective": _find_collective(each, records)}
    return hang.model_copy(update={**update, "evidence": cut.evidence})


def tell_unknown(each: PendingCollective, records: _Records, waiting: frozenset[int]) -> Hang:
    """All ranks are in the same call; nothing shows why it does not end."""
    number = len(each.waiting)
    whole = "all ranks of it are" if number > 1 else "its only rank is"
    sentence = f"{_name(each, records)} does not end: {whole} inside, and nothing moves"
    hang = _begin("unknown", (), records, waiting | each.waiting)
    evidence = _tell_facts(sorted(each.waiting)[:4], records)
    return hang.model_copy(
        update={"sentence": sentence, "collective": _find_collective(each, records), "evidence": evidence}
    )


def tell_idle(kind: HangClass, records: _Records) -> Hang:
    """No rank is in a collective, and none does anything."""
    clusters = cluster_ranks(records)
    named = ", ".join(
        f"{name_ranks(each.ranks)} {agree(each.ranks, 'is', 'are')} in {each.location}" for each in clusters[:3]
    )
    sentence = (
        "all ranks are stopped"
        if kind == "stopped"
        else f"no rank does anything, and none waits in a collective: {named}"
    )
    ranks = tuple(sorted(records)) if kind == "stopped" else ()
    update = {"sentence": sentence, "location": _find_where(records, sorted(records))}
    return _begin(kind, ranks, records, frozenset()).model_copy(
        update={**update, "evidence": _tell_facts(sorted(records)[:4], records)}
    )


# --- pieces


def _begin(kind: HangClass, ranks: tuple[int, ...], records: _Records, waiting: frozenset[int]) -> Hang:
    stalled = [records[rank].stalled_s for rank in {*ranks, *waiting} if rank in records] or [0.0]
    return Hang(
        kind=kind,
        ranks=tuple(sorted(ranks)),
        nodes=tuple(sorted({records[rank].node for rank in ranks if rank in records and records[rank].node})),
        sentence="",
        waiting=tuple(sorted(waiting - set(ranks))),
        stalled_s=max(stalled),
        rank_groups=cluster_ranks(records),
    )


def _say(fault: Fault, ranks: Iterable[int], place: str) -> str:
    """`hangs in load (train.py:88), in DataLoader.__next__`."""
    at = f" in {place}" if place else ""
    if fault.says:
        says = agree(ranks, fault.says, _PLURAL.sub(lambda verb: _PLURALS[verb[0]], fault.says))
        return says if fault.says in ("has ended", "says nothing") else says + at
    if fault.kind == "compute":
        return agree(ranks, "computes", "compute") + at + f" for more than {fault.limit_s:,.0f} s"
    if not place:
        return agree(ranks, "does not come", "do not come")
    return agree(ranks, "hangs", "hang") + at + _ADDED.get(fault.kind, "")


def _name(each: PendingCollective, records: _Records) -> str:
    """`all_reduce number 6 of the default group (train.py:40)`."""
    if each.group == SETUP:
        return f"the set-up of a process group{_at_line(records, min(each.waiting))}"
    first = _find_collective(each, records)
    what = clean_operation(first.operation) if first else "a collective"
    if each.group == CALL or each.group.startswith("pair "):
        return f"{what}{_at_line(records, min(each.waiting))}"
    return f"{what} number {each.sequence:,} of {_name_group(each)}{_at_line(records, min(each.waiting))}"


def _name_group(each: PendingCollective) -> str:
    return "the default group" if each.group == DEFAULT_GROUP else f"group {each.group} ({name_ranks(each.members)})"


def _at_line(records: _Records, rank: int) -> str:
    frame = find_user_frame(records[rank].stack)
    return f" ({frame.file.rpartition('/')[2]}:{frame.line})" if frame else ""


def _name_nodes(ranks: Iterable[int], records: _Records) -> str:
    return name_nodes(records[rank].node for rank in ranks if rank in records)


def _find_where(records: _Records, ranks: Iterable[int]) -> str:
    frames = (find_user_frame(records[rank].stack) for rank in ranks if rank in records)
    return next((str(frame) for frame in frames if frame), "")


def _find_collective(each: PendingCollective, records: _Records, ranks: Iterable[int] = ()) -> Collective | None:
    among = tuple(ranks) or sorted(each.waiting)
    return next((its for rank in among if rank in records and (its := records[rank].waits)), None)


def _tell_counts(each: PendingCollective, ranks: Iterable[int], records: _Records) -> tuple[str, ...]:
    """How far the culprits and those who wait have come in the group."""
    if each.sequence == 0 or each.group.startswith("pair "):
        return ()
    called: dict[int, list[int]] = {}
    for rank in ranks:
        if rank in records:
            called.setdefault(count_called(records[rank], each.group), []).append(rank)
    first = _find_collective(each, records)
    what = f", {describe_call(first)}" if first else ""
    return (
        *(
            f"{name_ranks(its)} {agree(its, 'has', 'have')} called {count:,} collectives of {_name_group(each)}"
            for count, its in sorted(called.items())[:4]
        ),
        f"{name_ranks(each.waiting)} {agree(each.waiting, 'waits', 'wait')} in number {each.sequence:,}{what}",
    )


def _tell_facts(ranks: Iterable[int], records: _Records) -> tuple[str, ...]:
    """What the system knows of some ranks' processes."""
    lines = []
    for rank in list(ranks)[:4]:
        its = records.get(rank)
        if its is None:
            lines.append(f"rank {rank}: no record has come for a long time")
            continue
        if its.state == "?":
            continue  # of a flight recorder's dump
        facts = [f"no progress for {its.stalled_s:,.0f} s, usually {its.usual_s:,.1f} s at most"]
        facts += [f"process {its.pid} in state {its.state}"] if its.state else []
        facts += [f"its Python threads have not run for {its.blind_s:,.0f} s"] if its.blind_s > 1 else []
        facts += [f"asleep in the kernel's {its.wchan}"] if its.wchan else []
        facts += [f"the file system at {its.full} has become full"] if its.full else []
        lines.append(f"rank {rank}: {', '.join(facts)}")
    return tuple(lines)

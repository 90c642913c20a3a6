"""A hang as a model: one sentence with the rank, its location and the ranks that wait, and the evidence."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from torchyard.diagnosis.hang.calls import CallGroup, NetworkFault, describe_call
from torchyard.diagnosis.hang.classes import get_fault_facts
from torchyard.diagnosis.hang.missing_ranks import HAS_ENDED, IS_SILENT, NEVER_REPORTED, Fault
from torchyard.diagnosis.hang.pending_collectives import (
    DEFAULT_GROUP,
    DEFAULT_SETUP,
    PAIR_PREFIX,
    SETUP,
    UNCOUNTED_CALL,
    PendingCollective,
    clean_operation,
    count_enqueued,
    is_in_collective,
)
from torchyard.diagnosis.hang.stack_locations import (
    choose_verb,
    describe_location,
    describe_nodes,
    describe_ranks,
    find_user_frame,
    group_ranks,
)
from torchyard.model.hang import Collective, Hang, HangClass, RankRecord

_Records = Mapping[int, RankRecord]
_MAX_EVIDENCE = 12
_MAX_CALLS = 4  # in a sentence about a mismatch, and of counts in the evidence
_MAX_PROCESSES = 4  # in the evidence
_MAX_LOCATIONS = 3  # in a sentence about an idle job
_PLURAL_VERBS = {"has": "have", "is": "are"}
_SINGULAR_VERB = re.compile(r"^(?:has|is)\b")


def describe_missing_ranks(
    collective: PendingCollective, faults: Mapping[int, Fault], records: _Records, waiting: frozenset[int]
) -> Hang:
    """Return the hang of ranks that others wait for. `faults`: by rank, of one kind; `waiting`: with dependents."""
    ranks = tuple(faults)
    fault = next(iter(faults.values()))
    recorded_ranks = [rank for rank in ranks if rank in records]
    locations = Counter(describe_location(records[rank]) for rank in recorded_ranks if records[rank].stack)
    location = locations.most_common(1)[0][0] if locations else ""

    subject = describe_ranks(ranks) + describe_nodes(records[rank].node for rank in recorded_ranks)
    pronoun = choose_verb(ranks, "it", "them")
    sentence = (
        f"{subject} {_describe_fault(fault, ranks, location)}: "
        f"{_describe_waiting(collective)} for {pronoun} in {_describe_collective(collective, records)}"
    )
    dependents = waiting - collective.waiting
    if dependents:
        sentence += f", and {describe_ranks(dependents)} for those"

    typical_ranks = [rank for rank in recorded_ranks if describe_location(records[rank]) == location][:1]
    evidence = _describe_counts(collective, ranks, records) + _describe_processes(ranks, records)
    hang = _build_hang(fault.kind, ranks, records, waiting | collective.waiting)
    return hang.model_copy(
        update={
            "sentence": sentence,
            "location": _find_location(records, typical_ranks),
            "collective": _find_call(collective, records),
            "evidence": evidence[:_MAX_EVIDENCE],
        }
    )


def describe_deadlock(cycle: tuple[PendingCollective, ...], records: _Records, waiting: frozenset[int]) -> Hang:
    """Return the hang of ranks that wait for each other."""
    ranks = tuple(sorted(frozenset().union(*(collective.waiting for collective in cycle))))
    clauses: list[str] = []
    evidence: list[str] = []
    for collective in cycle:
        clauses.append(f"{_describe_waiting(collective)} in {_describe_collective(collective, records)}")
        evidence += _describe_counts(collective, sorted(collective.missing & set(ranks)), records)
    subject = describe_ranks(ranks) + _describe_nodes_of(ranks, records)
    hang = _build_hang("deadlock-between-groups", ranks, records, waiting)
    return hang.model_copy(
        update={
            "sentence": f"{subject} wait for each other: {', '.join(clauses)}",
            "location": _find_location(records, ranks),
            "collective": _find_call(cycle[0], records),
            "evidence": tuple(evidence[:_MAX_EVIDENCE]),
        }
    )


def describe_mismatch(
    collective: PendingCollective, call_groups: tuple[CallGroup, ...], records: _Records, waiting: frozenset[int]
) -> Hang:
    """Return the hang of ranks that make different calls under one number.

    `call_groups`: the smallest first. It is blamed alone, or together with all others if the second is as small.
    """
    ranks = call_groups[0].ranks
    if len(call_groups[0].ranks) == len(call_groups[1].ranks):
        ranks = tuple(sorted(rank for call_group in call_groups for rank in call_group.ranks))
    clauses = []
    for call_group in reversed(call_groups):
        verb = choose_verb(call_group.ranks, "calls", "call")
        line = _format_call_line(records, call_group.ranks[0])
        clauses.append(f"{describe_ranks(call_group.ranks)} {verb} {call_group.call}{line}")
    is_counted = collective.sequence > 0
    subject = f"number {collective.sequence:,} of {_format_group(collective)}" if is_counted else "the next group"
    sentence = f"{subject} is not the same call in all ranks: {', '.join(clauses[:_MAX_CALLS])}"
    number = f", its number {collective.sequence:,}" if is_counted else ""
    evidence = tuple(f"{clause}{number}" for clause in clauses[:_MAX_EVIDENCE])
    hang = _build_hang("collective-mismatch", ranks, records, (waiting | collective.waiting) - set(ranks))
    return hang.model_copy(
        update={
            "sentence": sentence,
            "location": _find_location(records, ranks),
            "collective": _find_call(collective, records, call_groups[-1].ranks),
            "evidence": evidence,
        }
    )


def describe_skipped_call(
    collective: PendingCollective, completed_ranks: frozenset[int], records: _Records, waiting: frozenset[int]
) -> Hang:
    """Return the hang of ranks whose call of this number is complete while others wait in theirs: another call."""
    if len(completed_ranks) == len(collective.waiting):
        blamed = completed_ranks | collective.waiting
    elif len(completed_ranks) < len(collective.waiting):
        blamed = completed_ranks
    else:
        blamed = collective.waiting
    ranks = tuple(sorted(blamed))
    subject = describe_ranks(completed_ranks) + _describe_nodes_of(completed_ranks, records)
    sentence = (
        f"{subject} {choose_verb(completed_ranks, 'has', 'have')} completed "
        f"number {collective.sequence:,} of {_format_group(collective)}, "
        f"and {describe_ranks(collective.waiting)} still {choose_verb(collective.waiting, 'waits', 'wait')} "
        f"in {_describe_collective(collective, records)}: they have called different collectives"
    )
    hang = _build_hang("collective-mismatch", ranks, records, (waiting | collective.waiting) - set(ranks))
    return hang.model_copy(
        update={
            "sentence": sentence,
            "location": _find_location(records, ranks),
            "collective": _find_call(collective, records),
            "evidence": _describe_counts(collective, sorted(completed_ranks), records),
        }
    )


def describe_network_fault(
    collective: PendingCollective, fault: NetworkFault, records: _Records, waiting: frozenset[int]
) -> Hang:
    """Return the hang of ranks that are all in the same call while connections between them retransmit."""
    if fault.is_shared:
        members = collective.members & records.keys()
        ranks = tuple(sorted(rank for rank in members if records[rank].node in fault.nodes))
        suffix = f"all of them at {fault.nodes[0]}"
    else:
        ranks = ()
        suffix = f"as {', '.join(fault.nodes)} reports"
    sentence = (
        f"the network does not deliver: {describe_ranks(collective.waiting)} are in "
        f"{_describe_collective(collective, records)}, and connections retransmit, {suffix}"
    )
    hang = _build_hang("network", ranks, records, (waiting | collective.waiting) - set(ranks))
    return hang.model_copy(
        update={
            "sentence": sentence,
            "nodes": fault.nodes,
            "collective": _find_call(collective, records),
            "evidence": fault.evidence,
        }
    )


def describe_stuck_collective(collective: PendingCollective, records: _Records, waiting: frozenset[int]) -> Hang:
    """Return the hang of ranks that are all in the same call, when nothing shows why it does not end."""
    subject = "all ranks of it are" if len(collective.waiting) > 1 else "its only rank is"
    sentence = f"{_describe_collective(collective, records)} does not end: {subject} inside, and nothing moves"
    hang = _build_hang("unknown", (), records, waiting | collective.waiting)
    return hang.model_copy(
        update={
            "sentence": sentence,
            "collective": _find_call(collective, records),
            "evidence": _describe_processes(sorted(collective.waiting), records),
        }
    )


def describe_stopped_job(records: _Records) -> Hang:
    """Return the hang of a job whose ranks are all stopped."""
    hang = _build_hang("stopped", tuple(sorted(records)), records, frozenset())
    return _add_idle_ranks(hang, "all ranks are stopped", records)


def describe_idle_job(records: _Records) -> Hang:
    """Return the hang of a job in which no rank is in a collective, and none is active."""
    locations = []
    for rank_group in group_ranks(records)[:_MAX_LOCATIONS]:
        verb = choose_verb(rank_group.ranks, "is", "are")
        locations.append(f"{describe_ranks(rank_group.ranks)} {verb} in {rank_group.location}")
    sentence = f"no rank does anything, and none waits in a collective: {', '.join(locations)}"
    return _add_idle_ranks(_build_hang("all-waiting-outside", (), records, frozenset()), sentence, records)


def _add_idle_ranks(hang: Hang, sentence: str, records: _Records) -> Hang:
    """Return the hang with its sentence, and with the location and the processes of all ranks."""
    return hang.model_copy(
        update={
            "sentence": sentence,
            "location": _find_location(records, sorted(records)),
            "evidence": _describe_processes(sorted(records), records),
        }
    )


# --- pieces


def _build_hang(kind: HangClass, ranks: tuple[int, ...], records: _Records, waiting: frozenset[int]) -> Hang:
    """Return a hang without its sentence; its duration is that of the rank that has stalled longest."""
    durations_s = [records[rank].stalled_s for rank in {*ranks, *waiting} if rank in records]
    return Hang(
        kind=kind,
        ranks=tuple(sorted(ranks)),
        nodes=tuple(sorted({records[rank].node for rank in ranks if rank in records and records[rank].node})),
        sentence="",
        waiting=tuple(sorted(waiting - set(ranks))),
        stalled_s=max(durations_s, default=0.0),
        rank_groups=group_ranks(records),
    )


def _describe_fault(fault: Fault, ranks: Iterable[int], location: str) -> str:
    """`hangs in load (train.py:88), in DataLoader.__next__`."""
    suffix = f" in {location}" if location else ""
    if fault.predicate:
        plural = _SINGULAR_VERB.sub(lambda match: _PLURAL_VERBS[match[0]], fault.predicate)
        predicate = choose_verb(ranks, fault.predicate, plural)
        return predicate if fault.predicate in (HAS_ENDED, IS_SILENT, NEVER_REPORTED) else predicate + suffix
    facts = get_fault_facts(fault.kind)
    if facts.is_working:
        return choose_verb(ranks, "computes", "compute") + suffix + f" for more than {fault.limit_s:,.0f} s"
    if not location:
        return choose_verb(ranks, "does not come", "do not come")
    return choose_verb(ranks, "hangs", "hang") + suffix + facts.suffix


def _describe_waiting(collective: PendingCollective) -> str:
    """`ranks 0-2 wait`."""
    return f"{describe_ranks(collective.waiting)} {choose_verb(collective.waiting, 'waits', 'wait')}"


def _describe_collective(collective: PendingCollective, records: _Records) -> str:
    """`all_reduce number 6 of the default group (train.py:40)`."""
    line = _format_user_line(records, min(collective.waiting))
    if collective.group in (DEFAULT_SETUP, SETUP):
        return f"the set-up of a process group{line}"
    call = _find_call(collective, records)
    operation = clean_operation(call.operation) if call else "collective"
    if collective.group == UNCOUNTED_CALL or collective.group.startswith(PAIR_PREFIX):
        return f"{operation}{line}" if call else f"a {operation}{line}"
    return f"{operation} number {collective.sequence:,} of {_format_group(collective)}{line}"


def _format_group(collective: PendingCollective) -> str:
    """`the default group`, `group 7 (ranks 2-3)`."""
    if collective.group == DEFAULT_GROUP:
        return "the default group"
    return f"group {collective.group} ({describe_ranks(collective.members)})"


def _format_user_line(records: _Records, rank: int) -> str:
    """` (train.py:40)`; empty if no frame of the rank's stack is the user's."""
    frame = find_user_frame(records[rank].stack)
    return f" ({frame.file.rpartition('/')[2]}:{frame.line})" if frame else ""


def _format_call_line(records: _Records, rank: int) -> str:
    """` (train.py:40)`; ` (before train.py:41)` if the call has returned while it is pending, as those of NCCL do."""
    line = _format_user_line(records, rank)
    has_returned = not is_in_collective(records[rank].stack)
    return line.replace("(", "(before ", 1) if has_returned else line


def _describe_nodes_of(ranks: Iterable[int], records: _Records) -> str:
    return describe_nodes(records[rank].node for rank in ranks if rank in records)


def _find_location(records: _Records, ranks: Iterable[int]) -> str:
    """The first user frame among the stacks of these ranks, as `load (train.py:88)`; empty if there is none."""
    for rank in ranks:
        frame = find_user_frame(records[rank].stack) if rank in records else None
        if frame:
            return str(frame)
    return ""


def _find_call(collective: PendingCollective, records: _Records, ranks: Iterable[int] = ()) -> Collective | None:
    """The call of the first of `ranks` that reports one; by default of the waiting ranks. None if none reports one."""
    for rank in tuple(ranks) or sorted(collective.waiting):
        call = records[rank].pending if rank in records else None
        if call:
            return call
    return None


def _describe_counts(collective: PendingCollective, ranks: Iterable[int], records: _Records) -> tuple[str, ...]:
    """How many collectives of the group `ranks` have called, and in which one the others wait; () if not counted."""
    if collective.sequence == 0 or collective.group.startswith(PAIR_PREFIX):
        return ()
    ranks_by_count: dict[int, list[int]] = {}
    for rank in ranks:
        if rank in records:
            ranks_by_count.setdefault(count_enqueued(records[rank], collective.group), []).append(rank)
    lines = []
    for count, callers in sorted(ranks_by_count.items())[:_MAX_CALLS]:
        verb = choose_verb(callers, "has", "have")
        lines.append(f"{describe_ranks(callers)} {verb} called {count:,} collectives of {_format_group(collective)}")
    call = _find_call(collective, records)
    call_suffix = f", {describe_call(call)}" if call else ""
    lines.append(f"{_describe_waiting(collective)} in number {collective.sequence:,}{call_suffix}")
    return tuple(lines)


def _describe_processes(ranks: Iterable[int], records: _Records) -> tuple[str, ...]:
    """What the kernel reports about the processes of the first ranks, one line for each."""
    lines = []
    for rank in list(ranks)[:_MAX_PROCESSES]:
        record = records.get(rank)
        if record is None or record.kind == "silent":
            lines.append(f"rank {rank}: no record has come for a long time")
            continue
        if record.state == "?":
            continue  # from a dump of the flight recorder, which has no data about the process
        usual_s = record.typical_pause_s
        usual = f"usually {usual_s:,.1f} s at most at this line" if usual_s else "the first pause at this line"
        details = [f"no progress for {record.stalled_s:,.0f} s, {usual}"]
        if record.idle_s:
            details.append(f"idle for {record.idle_s:,.0f} s, with its children (processor, bytes and page faults)")
        if record.state:
            details.append(f"process {record.pid} in state {record.state}")
        if record.frozen_s > 1:
            details.append(f"its Python threads have not run for {record.frozen_s:,.0f} s")
        if record.wchan:
            details.append(f"asleep in the kernel's {record.wchan}")
        if record.full_mount:
            details.append(f"the file system at {record.full_mount} has become full")
        lines.append(f"rank {rank}: {', '.join(details)}")
    return tuple(lines)

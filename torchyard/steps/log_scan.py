"""Reads each log of an ended job forward, once: its lines, rank 0's output, network, records, checkpoints, failures."""

from collections.abc import Iterator

from torchyard.common.log_lines import parse_log_line_text
from torchyard.diagnosis.checkpoints import PRINTED_MARKER, CheckpointReader
from torchyard.diagnosis.checkpoints import RECORD_MARKER as CHECKPOINT_MARKER
from torchyard.diagnosis.hang.records import BlackBox, parse_line
from torchyard.diagnosis.nccl.log import NcclLogReader
from torchyard.model.hang import RankRecord
from torchyard.model.plan import Plan
from torchyard.steps.log_reader import RECORD_MARKER, create_filters, find_lines, read_blocks
from torchyard.steps.log_tail import DEFAULT_TAIL_LIMITS, FailureLineIndex

_END_MARKER = b'"kind":"end"'  # as the recorder prints it


class LogScan:
    """One pass over the logs of an ended job, block by block; every reader gets each block while it is in memory.

        scan = LogScan(plan, with_failures=True, with_records=True)
        metrics = read_json_lines(scan.read_rank_zero(b"{"))     reads every log, and yields rank 0's lines
        scan.line_counts, scan.nccl, scan.records, scan.failure_lines

    `read_rank_zero` is exhausted before the results are used; `read` is for a job whose output is not parsed. One of
    them is called, once. Raises OSError if a log cannot be read; a missing file is an empty log.

    line_counts: the complete lines of each log.
    nccl: the network that NCCL reports.
    records: the last record of each rank; empty without `with_records`.
    checkpoints: what the recorders and rank 0 report of checkpoints.
    ends: the last record of each rank's end, by rank; empty without `with_ends`.
    failure_lines: where each log has lines with a failure word; empty without `with_failures`.

    Memory: one block (`read_blocks`) and the results, of which only the line offsets grow with the number of logs
    (TailLimits) and the records with the number of ranks. The lines of a log are not kept: LogTails reads those that a
    failure needs from the offsets.
    """

    def __init__(
        self, plan: Plan, *, with_failures: bool = False, with_records: bool = False, with_ends: bool = False
    ) -> None:
        self.line_counts = dict.fromkeys(plan.logs, 0)
        self.nccl = NcclLogReader()
        self.records = BlackBox()
        self.checkpoints = CheckpointReader()
        self.ends: dict[int, RankRecord] = {}
        self.failure_lines: dict[str, FailureLineIndex] = {}
        if with_failures:
            self.failure_lines = {name: DEFAULT_TAIL_LIMITS.create_index(len(plan.logs)) for name in plan.logs}
        self._plan = plan
        self._checkpoint_filters = create_filters(plan)
        self._with_records = with_records
        self._with_ends = with_ends

    def read_rank_zero(self, marker: bytes = b"") -> Iterator[str]:
        """Read every log; yield the lines that global rank 0 printed and that contain `marker`."""
        filters = create_filters(self._plan)
        for name, path in self._plan.logs.items():
            for block in read_blocks(path):
                self._process_block(name, block)
                if name in filters:
                    yield from filters[name].select_in_block(name, block, marker)

    def read(self) -> None:
        """Read every log."""
        for name, path in self._plan.logs.items():
            for block in read_blocks(path):
                self._process_block(name, block)

    def _process_block(self, name: str, block: bytes) -> None:
        self.line_counts[name] += block.count(b"\n")
        if name in self.failure_lines:
            self.failure_lines[name].process_block(block)
        if name not in self._plan.nodes:
            return  # the store is not a node: it prints neither records nor lines of NCCL
        self.nccl.process_block(name, block)
        self._read_checkpoints(name, block)
        if self._with_records:
            for raw in find_lines(block, RECORD_MARKER):
                self.records.process_text(name, f"{parse_log_line_text(raw, name)}\n")
        if self._with_ends:
            for raw in find_lines(block, _END_MARKER):
                self._add_end(raw.decode(errors="replace"))

    def _read_checkpoints(self, name: str, block: bytes) -> None:
        for raw in find_lines(block, CHECKPOINT_MARKER):
            self.checkpoints.add_record(parse_log_line_text(raw, name))
        for line in self._checkpoint_filters[name].select_lines_in_block(name, block, PRINTED_MARKER):
            if PRINTED_MARKER.decode() in line.text:
                self.checkpoints.add_printed(line.text, line.timestamp)

    def _add_end(self, text: str) -> None:
        """Store the record of a rank's end, unless a later one is known: the ranks may have been started again."""
        for record in parse_line(text):
            previous = self.ends.get(record.rank)
            if record.kind == "end" and (previous is None or record.timestamp >= previous.timestamp):
                self.ends[record.rank] = record

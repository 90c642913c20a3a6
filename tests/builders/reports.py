"""Reports of runs with different ends, and their attempts."""

from torchyard.model.run import Attempt, Collected, Failure, LogFile, Metrics, Outcome, Report, Row, Status, Step

ROWS = [{"epoch": epoch, "epochs": 3, "accuracy": 0.5 + epoch / 10, "world_size": 2} for epoch in (1, 2, 3)]


def short_report(end: str = "succeeded", rows: int = 3) -> Report:
    """A run of one attempt with some rows, whose only log lacks lines."""
    failure = Failure(cause="program-error", sentence="it broke", tail=("Boom: 1",)) if end == "failed" else None
    collected = Collected(
        logs=(LogFile(node="node-0", path="/runs/x/node-0/log", lines=12, lost="3 lines: No space left on device"),),
        metrics=Metrics(rows=tuple(ROWS[:rows])),
        failure=failure,
    )
    outcome = Outcome(status=Status(state="running", reason=""), exit_codes={})
    fields = {"end": end, "sentence": "a sentence", "seconds": 761, "folder": "/runs/x", "run": "x-1", "profile": "x"}
    steps = (Step(name="wait", seconds=12.3, detail="both joined"),)
    return Report.model_validate(
        fields | {"steps": steps, "attempts": (Attempt(number=1, outcome=outcome, collected=collected),)}
    )


def report(sentence: str = "it broke", rows: tuple[Row, ...] = (), attempts: int = 1, **fields: object) -> Report:
    """A run that failed with a sentence, after some attempts with the same rows, logs and last lines."""
    logs = fields.get("logs", (LogFile(node="node-0", path="/runs/x/node-0/log", lines=1),))
    failure = Failure.model_validate({"cause": "program-error", "sentence": sentence, "tail": fields.get("tail", ())})
    collected = Collected.model_validate({"logs": logs, "metrics": Metrics(rows=rows), "failure": failure})
    outcome = Outcome(status=Status(state="failed", reason=sentence), exit_codes={})
    return Report(
        profile="x",
        run="x-1",
        end="failed",
        sentence=sentence,
        seconds=761,
        steps=(Step(name="wait", seconds=1, detail=sentence),) * 5 * attempts,
        attempts=tuple(
            Attempt(number=number, outcome=outcome, collected=collected) for number in range(1, attempts + 1)
        ),
        leftovers=tuple(f"{sentence} {number}" for number in range(2_000 if attempts > 1 else 1)),
        folder="/runs/x",
    )


def attempt(number: int, cause: str, machine: str = "gpu-7") -> Attempt:
    """An attempt that failed on worker-1, or that succeeded if no cause is given."""
    failure = Failure(cause=cause, sentence="it broke", node="worker-1", retry=True) if cause else None
    status = Status(state="failed" if cause else "succeeded", reason="2 of 2 pods succeeded")
    machines = {"worker-0": "gpu-1", "worker-1": machine} if machine else {}
    outcome = Outcome(status=status, exit_codes={}, machines=machines)
    return Attempt(number=number, outcome=outcome, collected=Collected(logs=(), metrics=Metrics(), failure=failure))


def report_of(*attempts: Attempt) -> Report:
    return Report(
        profile="p", run="p-1", end="succeeded", sentence="done", seconds=1, steps=(), attempts=attempts, folder="/r"
    )

"""All causes and all rules of logs, and the cause of a stored slug."""

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from torchyard.model.causes.cause import Cause, LogRule
from torchyard.model.causes.events import EVENT_LOG_RULES, EventCause
from torchyard.model.causes.fabric import FABRIC_RULES, FabricCause
from torchyard.model.causes.gpu import GPU_RULES, GpuCause
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.causes.memory import MEMORY_RULES, MemoryCause
from torchyard.model.causes.platform import PLATFORM_RULES, PlatformCause
from torchyard.model.causes.pods import PodCause
from torchyard.model.causes.program import PROGRAM_RULES, ProgramCause
from torchyard.model.causes.rendezvous import RENDEZVOUS_RULES, RendezvousCause
from torchyard.model.causes.start import START_RULES, StartCause

FAMILIES: tuple[type[Cause], ...] = (
    FabricCause,
    MemoryCause,
    GpuCause,
    StartCause,
    PlatformCause,
    ProgramCause,
    RendezvousCause,
    PodCause,
    EventCause,
    LauncherCause,
)
CAUSES: dict[str, Cause] = {}
for _family in FAMILIES:
    CAUSES.update((cause.value, cause) for cause in _family)

# The order is a rule: if one line shows two causes of the same distance, the first of them counts, here and within a
# family. So specific causes precede general ones: a rank without RDMA also reports a system error, a GPU that is lost
# also reports a CUDA error, and a killed program is also an error of the program.
LOG_RULES: tuple[LogRule, ...] = (
    *FABRIC_RULES,
    *MEMORY_RULES,
    *GPU_RULES,
    *START_RULES,
    *EVENT_LOG_RULES,
    *PLATFORM_RULES,
    *PROGRAM_RULES,
    *RENDEZVOUS_RULES,
)


def parse_cause(value: Any) -> Cause:
    """The cause of a slug; `unknown` for any other text, so that reports of other versions can be read.

    ValueError if the value is not a text.
    """
    if not isinstance(value, str):
        raise ValueError("a cause is a text")
    return CAUSES.get(value, ProgramCause.UNKNOWN)


# A cause as a field of a model. Its class has no members that pydantic could find.
StoredCause = Annotated[Cause, PlainValidator(parse_cause), WithJsonSchema({"type": "string"})]

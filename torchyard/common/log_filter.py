"""What every handler of the log needs: what programs wrote obeys no terminal, and no secret is shown."""

import logging

from torchyard.common.escaping import strip_control_codes
from torchyard.common.secrets import mask_text
from torchyard.model.errors import TorchyardError


class SafeText(logging.Filter):
    """Escapes and masks each line; an error of ours is a sentence for a person, and needs no stack."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, TorchyardError):
            record.msg, record.args, record.exc_info, record.exc_text = str(error), (), None, None
        record.msg, record.args = mask_text(strip_control_codes(record.getMessage())), ()
        return True

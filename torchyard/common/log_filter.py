"""A filter for every log handler: it removes control codes that programs wrote, and masks secrets."""

import logging

from torchyard.common.escaping import strip_control_codes
from torchyard.common.secrets import mask_text
from torchyard.model.errors import TorchyardError


class SafeText(logging.Filter):
    """Escapes and masks each line; a torchyard error is a sentence for people, and needs no stack trace."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, TorchyardError):
            record.msg, record.args, record.exc_info, record.exc_text = str(error), (), None, None
        record.msg, record.args = mask_text(strip_control_codes(record.getMessage())), ()
        return True

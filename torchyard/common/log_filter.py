"""A filter for every log handler: it removes control codes from a program's text, and masks secrets."""

import logging

from torchyard.common.escaping import strip_control_codes
from torchyard.common.secrets import mask_text
from torchyard.model.errors import TorchyardError


class SafeText(logging.Filter):
    """Escape and mask the message of each record, in place; no record is dropped.

    A TorchyardError is a complete sentence: it replaces the message, and its stack trace is not logged.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, TorchyardError):
            message = str(error)
            record.exc_info = None
            record.exc_text = None
        else:
            message = record.getMessage()
        record.msg = mask_text(strip_control_codes(message))
        record.args = ()
        return True

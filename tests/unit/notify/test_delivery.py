"""Messages are delivered to a real receiver; a failed delivery is an error with its reason."""

import pytest

from tests.processes.receiver import Receiver
from torchyard.common.outbox import DeliveryError
from torchyard.notify.delivery import Message, send_message

MESSAGE = Message("mine: failed", "it broke\n\ntorchyard logs mine-1", "failure")


def test_message_arrives_as_text(receiver: Receiver) -> None:
    """An address gets title, text and tone, also if a variable names it."""
    send_message(receiver.address, MESSAGE, {})
    send_message("$HOOK", MESSAGE, {"HOOK": f"{receiver.address}2"})
    assert [(message["title"], message["message"], message["type"]) for message in receiver.received] == [
        ("mine: failed", MESSAGE.body, "failure")
    ] * 2


@pytest.mark.parametrize(
    ("address", "reason"),
    [("json://127.0.0.1:1/hook", "A Connection error occurred"), ("$HOOK", r"\$HOOK: HOOK is not set")],
)
def test_message_that_cannot_arrive_is_an_error(address: str, reason: str) -> None:
    """A receiver that is down, or an address whose variable is not set, is an error with the reason."""
    with pytest.raises(DeliveryError, match=f"^{reason}"):
        send_message(address, MESSAGE, {})


def test_refusal_is_quoted(receiver: Receiver) -> None:
    """A receiver that responds with an error has not received the message, and its response is quoted."""
    receiver.status = 403
    with pytest.raises(DeliveryError, match="403"):
        send_message(receiver.address, MESSAGE, {})


def test_line_of_a_program_mentions_nobody_in_a_chat(receiver: Receiver) -> None:
    """A quoted line cannot mention everyone in a chat."""
    send_message(receiver.address, Message("x", "died: <!channel> @everyone", "failure"), {})
    assert receiver.received[0]["message"] == "died: <! channel> @ everyone"

"""Messages are delivered to a real receiver; a failed delivery is a warning."""

import pytest

from tests.receiver import Receiver
from torchyard.notify.delivery import Delivery, Message

MESSAGE = Message("mine: failed", "it broke\n\ntorchyard logs mine-1", "failure")


def test_message_arrives_as_text(receiver: Receiver) -> None:
    """Each address gets title, text and tone, and the caller is notified of each arrival."""
    arrived: list[int] = []
    delivery = Delivery([receiver.address, "$HOOK"], {"HOOK": f"{receiver.address}2"})
    delivery.send(MESSAGE, [0, 1], arrived.append)
    assert (delivery.finish(10), sorted(arrived)) == ((), [0, 1])
    assert [(message["title"], message["message"], message["type"]) for message in receiver.received] == [
        ("mine: failed", MESSAGE.body, "failure")
    ] * 2


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("json://127.0.0.1:1/hook", "json://… has not got 'mine: failed': A Connection error occurred"),
        ("$HOOK", "$HOOK has not got 'mine: failed': $HOOK: HOOK is not set"),
    ],
)
def test_message_that_cannot_arrive_is_a_warning(address: str, expected: str, caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that is down, or an address whose variable is not set, is reported with the reason."""
    arrived: list[int] = []
    delivery = Delivery([address], {})
    delivery.send(MESSAGE, [0], arrived.append)
    (unsent,) = delivery.finish(10)
    assert unsent.startswith(expected)
    assert arrived == []
    assert f"notify: {expected}" in caplog.text


def test_refusal_is_reported(receiver: Receiver) -> None:
    """A receiver that responds with an error has not received the message, and its response is quoted."""
    receiver.status = 403
    delivery = Delivery([receiver.address], {})
    delivery.send(MESSAGE, [0], lambda _: None)
    (unsent,) = delivery.finish(10)
    assert "403" in unsent


def test_receiver_that_hangs_delays_neither_the_caller_nor_the_others(receiver: Receiver) -> None:
    """Sending returns immediately, the end does not wait for a response, and the other address gets the message."""
    receiver.is_hanging = True
    arrived: list[int] = []
    delivery = Delivery([receiver.address, "json://127.0.0.1:1/x"], {})
    delivery.send(MESSAGE, [0, 1], arrived.append)
    unsent = delivery.finish(1.0)
    assert sorted(description.rpartition(": ")[2] for description in unsent)[1] == "no answer for 1 s"
    assert len(unsent) == 2


def test_line_of_a_program_mentions_nobody_in_a_chat(receiver: Receiver) -> None:
    """A quoted line cannot mention everyone in a chat."""
    delivery = Delivery([receiver.address], {})
    delivery.send(Message("x", "died: <!channel> @everyone", "failure"), [0], lambda _: None)
    delivery.finish(10)
    assert receiver.received[0]["message"] == "died: <! channel> @ everyone"

"""Messages arrive at a real receiver; one that does not is a warning, soon."""

import pytest

from tests.receiver import Receiver
from torchyard.notify.delivery import Delivery, Message

MESSAGE = Message("mine: failed", "it broke\n\ntorchyard logs mine-1", "failure")


def test_message_arrives_as_text(receiver: Receiver) -> None:
    """Each address gets title, text and tone, and the caller learns which addresses have got it."""
    arrived: list[int] = []
    delivery = Delivery([receiver.address, "$HOOK"], {"HOOK": f"{receiver.address}2"})
    delivery.send(MESSAGE, [0, 1], arrived.append)
    assert (delivery.finish(10), sorted(arrived)) == ((), [0, 1])
    assert [(each["title"], each["message"], each["type"]) for each in receiver.got] == [
        ("mine: failed", MESSAGE.body, "failure")
    ] * 2


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("json://127.0.0.1:1/hook", "json://… has not got 'mine: failed': A Connection error occurred"),
        ("$HOOK", "$HOOK has not got 'mine: failed': $HOOK: HOOK is not set"),
    ],
)
def test_message_that_cannot_arrive_is_a_warning(address: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that is away, or an address without its variable, is named with the reason."""
    arrived: list[int] = []
    delivery = Delivery([address], {})
    delivery.send(MESSAGE, [0], arrived.append)
    (lost,) = delivery.finish(10)
    assert (lost.startswith(said), arrived) == (True, [])
    assert f"notify: {said}" in caplog.text


def test_refusal_is_told(receiver: Receiver) -> None:
    """A receiver that answers with an error has not got the message, and its answer is quoted."""
    receiver.status = 403
    delivery = Delivery([receiver.address], {})
    delivery.send(MESSAGE, [0], lambda _: None)
    (lost,) = delivery.finish(10)
    assert "403" in lost


def test_receiver_that_hangs_delays_neither_the_caller_nor_the_others(receiver: Receiver) -> None:
    """Sending returns at once, the end does not wait for the answer, and the other address is tried as well."""
    receiver.hangs = True
    arrived: list[int] = []
    delivery = Delivery([receiver.address, "json://127.0.0.1:1/x"], {})
    delivery.send(MESSAGE, [0, 1], arrived.append)
    lost = delivery.finish(1.0)
    assert sorted(each.rpartition(": ")[2] for each in lost)[1] == "no answer for 1 s"
    assert len(lost) == 2


def test_line_of_a_program_calls_nobody(receiver: Receiver) -> None:
    """A quoted line cannot mention everyone in a chat."""
    delivery = Delivery([receiver.address], {})
    delivery.send(Message("x", "died: <!channel> @everyone", "failure"), [0], lambda _: None)
    delivery.finish(10)
    assert receiver.got[0]["message"] == "died: <! channel> @ everyone"

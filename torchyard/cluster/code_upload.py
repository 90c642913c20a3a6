"""Sends the code of a job to its volume claim, through the pod of the plan that waits for it."""

import asyncio

from torchyard.code.archive import read_archive
from torchyard.common.escaping import single_line
from torchyard.kube.client import Client
from torchyard.kube.retry import TransientError, retry_request
from torchyard.kube.sessions import ContainerCommand, run_in_container
from torchyard.kube.streams import StreamClient
from torchyard.model.errors import ClusterError, CodeError
from torchyard.model.plan import StagedCode
from torchyard.pods.code.unpacking import CONTAINER_NAME
from torchyard.pods.code.upload import build_receive_command

_MAX_OUTPUT_CHARS = 500
UPLOAD_REMEDY = (
    "the claim must be writable for the pods (pod.user, fsGroup) and have room; their image needs /bin/sh, head and wc"
)


def send_code(client: Client, code: StagedCode, pod_name: str) -> None:
    """Send the archive to the pod that waits for it, unless the volume has it; the pod then ends.

    CodeError if this machine does not have the archive, or the pod cannot store it; ClusterError if the API server
    refuses the command, or does not respond.
    """
    assert code.claim
    read_archive(code)  # it must be unchanged
    argv = build_receive_command(code.claim, code.archive.packed_bytes, pod_name)
    pod_path = client.path("v1", "Pod", pod_name)
    output = bytearray()

    def send() -> int:
        output.clear()
        with open(code.path, "rb") as archive:
            command = ContainerCommand(pod_path, CONTAINER_NAME, argv, archive.fileno())
            session = run_in_container(StreamClient(client.credentials), command, lambda _, data: output.extend(data))
            return asyncio.run(session)

    try:
        exit_code = retry_request(send)
    except TransientError as error:
        raise ClusterError(client.host, f"send the code to pod {pod_name}", error.message, error.status) from error
    if exit_code:
        text = single_line(output.decode(errors="replace"), _MAX_OUTPUT_CHARS)
        reason = f"pod {pod_name} could not store it (exit code {exit_code}: {text})"
        raise CodeError(f"claim {code.claim.name}", reason, UPLOAD_REMEDY)
